"""The builder: which of Docker's clients serves, what it is told, and what of its cache is ours to remove."""

from pathlib import Path
from typing import Any

import pytest

from deploy import buildkit
from deploy.buildkit import BuildError


def docker_client(folder: Path, version: str, *, buildx: bool = False, script: str = "exit 1") -> Path:
    """A program that answers as Docker's client of a version does."""
    folder.mkdir()
    program = folder / "docker"
    program.write_text(
        f"""#!/bin/sh
case "$1" in
    --version) echo "Docker version {version}, build 0" ;;
    buildx) {"exit 0" if buildx else "echo 'docker: unknown command: docker buildx' >&2; exit 1"} ;;
    build) {script} ;;
esac
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "buildx", "serves"),
    [
        pytest.param("20.10.24+dfsg1", False, True, id="debian-12"),
        pytest.param("26.1.5+dfsg1", True, True, id="debian-13-with-buildx"),
        pytest.param("26.1.5+dfsg1", False, False, id="newer-without-buildx"),
        pytest.param("18.06.1", False, False, id="before-buildkit"),
        pytest.param("of unknown age", False, False, id="odd"),
    ],
)
def test_a_client_serves_if_it_can_use_buildkit(
    version: str, buildx: bool, serves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = docker_client(tmp_path / "bin", version, buildx=buildx)
    monkeypatch.setenv("PATH", f"{program.parent}:/nowhere")
    assert buildkit.missing_packages() == ([] if serves else ["docker-buildx"])
    if serves:
        assert buildkit.client() == program
    else:
        with pytest.raises(BuildError, match="apt-get install docker-buildx"):
            buildkit.client()


def test_a_client_that_cannot_is_passed_over_for_one_that_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = docker_client(tmp_path / "first", "28.2.2")
    second = docker_client(tmp_path / "second", "20.10.24")
    monkeypatch.setenv("PATH", f"{first.parent}:{second.parent}")
    assert buildkit.client() == second


def test_without_any_client_both_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert buildkit.missing_packages() == ["docker-buildx", "docker-cli"]


def build(folder: Path, **changes: Any) -> None:
    options: dict[str, Any] = {"arguments": {"A": "b"}, "labels": {"l": "m"}, "network": "none", "docker_host": None}
    buildkit.build(folder, folder / "Dockerfile", "x:1", **options | changes)


def test_a_build_tells_its_steps_and_uses_the_engine_s_own_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = "echo '#5 [build 2/3] RUN install'; echo '#5 0.1 noise'; echo \"$*\" >asked; env >environment"
    program = docker_client(tmp_path / "bin", "20.10.24", script=script)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    monkeypatch.setattr(buildkit, "tell", told.append)
    build(tmp_path, docker_host="unix:///run/other.sock")
    assert told == ["step 2/3: RUN install"]
    asked = (tmp_path / "asked").read_text()
    assert all(word in asked for word in ("--network=none", "--build-arg=A=b", "--label=l=m", "--tag=x:1"))
    environment = (tmp_path / "environment").read_text().splitlines()
    assert {"DOCKER_BUILDKIT=1", "BUILDX_BUILDER=default", "DOCKER_HOST=unix:///run/other.sock"} <= set(environment)


def test_a_build_that_fails_says_the_builder_s_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = docker_client(tmp_path / "bin", "20.10.24", script="echo 'no space left on device'; exit 1")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(BuildError, match=r"(?s)x:1 could not be built.*no space left"):
        build(tmp_path)


class Engine:
    """An engine with a build cache; an entry that another stands on is not removed before that one."""

    def __init__(self, *entries: tuple[str, str, str, str]) -> None:
        self.entries = {name: (parent, kind, description) for name, parent, kind, description in entries}
        self.api = self

    def df(self) -> dict[str, Any]:
        return {
            "BuildCache": [
                {"ID": name, "Parent": parent, "Type": kind, "Description": description}
                for name, (parent, kind, description) in self.entries.items()
            ]
        }

    def prune_builds(self, filters: dict[str, str], **_: object) -> dict[str, Any]:
        name = filters["id"]
        if any(parent == name for parent, _, _ in self.entries.values()) or name not in self.entries:
            return {"CachesDeleted": None, "SpaceReclaimed": 0}
        del self.entries[name]
        return {"CachesDeleted": [name], "SpaceReclaimed": 10}


OURS = "mount / from exec /bin/sh -c /gpucampus-build/install-layer"


def test_only_what_our_instructions_left_is_forgotten_from_the_top_down():
    engine: Any = Engine(
        ("a", "", "regular", OURS),
        ("b", "a", "regular", OURS),
        ("c", "", "regular", "mount / from exec make"),
        ("d", "", "regular", OURS),
        ("e", "d", "regular", "mount / from exec somebody's, on one of ours"),
    )
    assert buildkit.forget(engine) == 20
    assert set(engine.entries) == {"c", "d", "e"}


def test_of_the_contexts_only_those_of_this_build_are_forgotten():
    engine: Any = Engine(("old", "", "source.local", "local source for context"), ("layer", "", "regular", OURS))
    before = buildkit.cached(engine)
    engine.entries |= {"new": ("", "source.local", "local source for context"), "top": ("layer", "regular", OURS)}
    buildkit.forget_sources(engine, before)
    assert set(engine.entries) == {"old", "layer", "top"}
