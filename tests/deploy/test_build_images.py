from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from deploy import build_images, buildkit, debian_base, image_recipe
from deploy.buildkit import BuildError
from spawner.core.catalog import Base


@pytest.mark.parametrize("change", ["content", "mode", "name", "text"])
def test_whatever_changes_an_image_changes_the_hash_of_its_inputs(tmp_path: Path, change: str):
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\n")
    before = image_recipe.hashed([file], "base")
    text = "base"
    if change == "content":
        file.write_text("FROM other\n")
    elif change == "mode":
        file.chmod(0o755)
    elif change == "name":
        file = file.rename(tmp_path / "Containerfile")
    else:
        text = "another base"
    assert image_recipe.hashed([file], text) != before


def test_an_unknown_variant_is_answered_with_those_that_exist():
    with pytest.raises(BuildError, match=r"nonsense is not a variant .* cpu, cu126"):
        build_images.build("nonsense")


@pytest.mark.parametrize(
    ("reference", "host"),
    [
        ("debian@sha256:0", "registry-1.docker.io"),
        ("library/debian@sha256:0", "registry-1.docker.io"),
        ("registry.example.org/debian@sha256:0", "registry.example.org"),
        ("localhost:5000/debian@sha256:0", "localhost:5000"),
    ],
)
def test_the_registry_that_a_reference_names_is_the_one_asked(
    reference: str, host: str, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def refuse(address: str, timeout: float) -> None:
        asked.append((address, timeout))
        raise OSError

    monkeypatch.setattr("deploy.build_images.urllib.request.urlopen", refuse)
    assert not build_images._registry_answers(reference)
    assert asked == [(f"https://{host}/v2/", 5)]


PINNED = "debian@sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("registry_image", "answers", "below", "network"),
    [
        pytest.param(PINNED, True, PINNED, None, id="a-registry-that-answers"),
        pytest.param(PINNED, False, "imported", "none", id="a-registry-that-does-not"),
        pytest.param("", True, "imported", "none", id="no-registry-named"),
    ],
)
def test_the_base_comes_from_the_registry_only_where_that_answers(
    registry_image: str, answers: bool, below: str, network: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    client = MagicMock()
    built: dict[str, Any] = {}
    monkeypatch.setattr(build_images, "_current", lambda *_: None)
    monkeypatch.setattr(build_images, "_registry_answers", lambda _: answers)
    monkeypatch.setattr(debian_base, "bring", lambda *_: "imported")
    monkeypatch.setattr(buildkit, "build", lambda *_, **options: built.update(options))
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    client.images.get.return_value.id = "sha256:base"
    client.images.list.return_value = []
    base = Base(image="gpucampus/base", suite="bookworm", registry_image=registry_image)
    assert build_images.build_base(client, base, tmp_path) == "sha256:base"
    assert (built["arguments"]["BASE_IMAGE"], built["network"]) == (below, network)
    assert ("https_proxy" in built["arguments"]) is (network is None), "a build without a network needs no proxy"
    assert client.images.pull.called == (below == PINNED)


@pytest.mark.parametrize(
    ("mirror", "authority"),
    [
        pytest.param("", False, id="official"),
        pytest.param("http://apt.example.org", False, id="mirror"),
        pytest.param("https://apt.example.org/", True, id="mirror-of-the-campus-s-own-authority"),
    ],
)
def test_the_base_s_packages_come_from_the_mirror_and_the_image_keeps_no_path_of_this_machine(
    mirror: str, authority: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    program = tmp_path / "mmdebstrap"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$0.asked"\necho "I: downloading packages..." >&2\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("GPUCAMPUS_APT_MIRROR", mirror)
    monkeypatch.setenv("SSL_CERT_FILE", "/state/ca-bundle.pem")
    told: list[str] = []
    monkeypatch.setattr(debian_base, "tell", told.append)
    debian_base._mmdebstrap("bookworm", ("python3",), tmp_path / "base.tar")
    asked = (tmp_path / "mmdebstrap.asked").read_text().splitlines()
    assert [line.split()[1] for line in asked if line.startswith("deb ")] == [
        f"{mirror.rstrip('/') or 'http://deb.debian.org'}/{part}" for part in ("debian", "debian", "debian-security")
    ]
    assert any("ca-bundle.pem" in line for line in asked) is authority
    assert any("CAInfo/d" in line for line in asked) is authority
    assert told == ["downloading packages"]


def test_a_mirror_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "mmdebstrap").write_text("#!/bin/sh\necho 'E: no such suite' >&2\nexit 25\n")
    (tmp_path / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("GPUCAMPUS_APT_MIRROR", "http://apt.example.org")
    with pytest.raises(BuildError, match=r"(?s)from http://apt\.example\.org.*no such suite"):
        debian_base._mmdebstrap("bookworm", ("python3",), tmp_path / "base.tar")
