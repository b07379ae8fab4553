"""A registry, a site key and an image: what is signed, what is not, and what a start makes of it."""

import json
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy import image_tools
from deploy.debian_packages import PackageError
from deploy.image_records import read
from deploy.image_sign import attest, push, pushed, sign, verify
from deploy.image_tools import ImageProblem
from spawner.core.model import Code, Refusal, Variant
from spawner.core.trust import Outcome, digest_of
from spawner.runtime import Runtime
from spawner.settings import Settings
from tests.rig.engine import PrivateEngine
from tests.rig.namespace import outside
from tests.rig.registry import running_registry
from tests.test_settings import LEAST

pytestmark = pytest.mark.docker

LOCAL = Variant(name="probe", title="Probe", image="gpucampus-test/signed:1")
AT_ONCE_S = 2.0


@pytest.fixture(scope="module")
def registry(tmp_path_factory: Any) -> Iterator[str]:
    """Skips only where Debian's mirror cannot be had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_tools, "unpack", _unpack_from_outside)
        try:
            image_tools.cosign()
            program = image_tools.registry_program()
        except PackageError as error:
            pytest.skip(f"cosign and docker-registry of Debian trixie cannot be had: {error}")
    with running_registry(program, tmp_path_factory.mktemp("registry")) as address:
        yield address


def _unpack_from_outside(packages: list[str], suite: str, target: Path) -> None:
    from deploy.debian_packages import unpack  # noqa: PLC0415 - the name is patched in image_tools alone

    unpack(packages, suite, target, around=outside)


@pytest.fixture(scope="module")
def keys(registry: str, tmp_path_factory: Any) -> Path:
    """Two pairs: the site's, and somebody else's."""
    folder = Path(tmp_path_factory.mktemp("keys"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COSIGN_PASSWORD", "")
        for name in ("site", "other"):
            command = [str(image_tools.cosign()), "generate-key-pair", "--output-key-prefix", str(folder / name)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture
def image(registry: str, engine: PrivateEngine, probe_image: str, tmp_path: Path, monkeypatch: Any) -> str:
    """An image of its own in the registry, by digest; nothing is signed."""
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    with engine.container(probe_image, ["true"]) as container:
        container.commit(repository="gpucampus-test/signed", tag="1", message=str(tmp_path))
    return push(engine.client, LOCAL, f"{registry}/campus")


def hub_of(image: str, key: Path, state: Path) -> tuple[Runtime, Variant]:
    settings = tomllib.loads(LEAST) | {"state": str(state), "images": {"key": str(key)}}
    return Runtime(Settings.model_validate(settings)), Variant(name="probe", title="Probe", image=image)


async def outcome_of_a_start(hub: Runtime, variant: Variant) -> object:
    began = time.monotonic()
    found = await hub.image_of(variant)
    assert time.monotonic() - began < AT_ONCE_S
    return found.code if isinstance(found, Refusal) else found


async def test_only_a_signature_of_the_site_s_key_lets_an_image_of_the_registry_start(
    image: str, engine: PrivateEngine, keys: Path, tmp_path: Path, monkeypatch: Any
):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    site, other = keys / "site.pub", keys / "other.pub"
    hub, variant = hub_of(image, site, tmp_path)
    assert await outcome_of_a_start(hub, variant) is Code.IMAGE_UNVERIFIED

    assert verify(image, site, state=tmp_path).outcome is Outcome.UNSIGNED
    assert await outcome_of_a_start(hub, variant) is Code.IMAGE_UNSIGNED

    sign(image, keys / "other.key")
    assert verify(image, site, state=tmp_path).outcome is Outcome.WRONG_KEY
    assert await outcome_of_a_start(hub, variant) is Code.IMAGE_WRONG_KEY
    assert verify(image, other, state=tmp_path).outcome is Outcome.SIGNED
    assert await outcome_of_a_start(hub, variant) is Code.IMAGE_UNVERIFIED, "another key's word counts for nothing"

    sign(image, keys / "site.key")
    found = verify(image, site, state=tmp_path)
    assert (found.outcome, found.sbom) == (Outcome.SIGNED, False)
    assert await outcome_of_a_start(hub, variant) == engine.client.images.get(image).id
    assert engine.client.containers.list(all=True) == []
    hub.engine.close()


async def test_a_start_asks_no_registry(
    image: str, engine: PrivateEngine, keys: Path, tmp_path: Path, monkeypatch: Any
):
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    sign(image, keys / "site.key")
    verify(image, keys / "site.pub", state=tmp_path)
    hub, variant = hub_of(image, keys / "site.pub", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("a start runs no program"))
    for method in ("pull", "inspect_distribution", "push", "login"):
        monkeypatch.setattr(f"docker.APIClient.{method}", lambda *_a, **_k: pytest.fail("a start asks no registry"))
    assert await outcome_of_a_start(hub, variant) == engine.client.images.get(image).id
    hub.engine.close()


def test_an_sbom_is_attested_with_the_same_key(image: str, keys: Path, tmp_path: Path):
    sbom = tmp_path / "sbom.json"
    sbom.write_text(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": []}))
    sign(image, keys / "site.key")
    attest(image, keys / "site.key", sbom)
    assert verify(image, keys / "site.pub", state=tmp_path).sbom
    assert not verify(image, keys / "other.pub", state=tmp_path).sbom


def test_a_tag_is_never_signed_and_the_digest_of_a_push_is_found_again(image: str, engine: PrivateEngine, keys: Path):
    registry = image.rpartition("/")[0]
    assert pushed(engine.client, LOCAL, registry) == image
    with pytest.raises(ImageProblem, match="can be moved"):
        sign(image.partition("@")[0] + ":1", keys / "site.key")
    with pytest.raises(ImageProblem, match="has not been pushed"):
        pushed(engine.client, LOCAL, "registry.example.org/campus")


def test_a_registry_that_does_not_answer_leaves_what_was_known(image: str, keys: Path, tmp_path: Path):
    sign(image, keys / "site.key")
    verify(image, keys / "site.pub", state=tmp_path)
    before = read(tmp_path)
    gone = f"127.0.0.1:1/campus/probe@{digest_of(image)}"
    with pytest.raises(ImageProblem, match="nothing was noted"):
        verify(gone, keys / "site.pub", state=tmp_path)
    assert read(tmp_path) == before
