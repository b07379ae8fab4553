"""The papers of a real image: made beside it, put into it, and the image is still the recorded one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy import image_audit, image_tools
from deploy.debian_packages import PackageError, unpack
from deploy.image_recipe import read_catalog
from deploy.image_records import read
from deploy.image_tools import ImageProblem
from spawner.core.model import Variant
from spawner.core.trust import judge
from tests.rig.engine import PrivateEngine
from tests.rig.namespace import outside

pytestmark = pytest.mark.images

NAME = "plain"


def _reach_out(monkeypatch: Any) -> None:
    """Fetch the tools from the machine's own network; the tests' has no way out."""
    own = image_tools.said_by

    def said_by(command: list[str], **options: Any) -> str:
        return own(outside(command) if "install" in command else command, **options)

    def fetch(packages: list[str], suite: str, target: Path) -> None:
        unpack(packages, suite, target, around=outside)

    monkeypatch.setattr(image_tools, "said_by", said_by)
    monkeypatch.setattr(image_tools, "unpack", fetch)


def test_an_image_gets_its_papers_and_stays_the_one_that_starts(
    engine: PrivateEngine, tmp_path: Path, monkeypatch: Any
):
    listed = read_catalog().get(NAME)
    assert listed is not None
    engine.build_variant(NAME)
    engine.client.images.get(listed.image).tag("gpucampus-test/papers", tag="1")
    variant = Variant(name="papers", title="", image="gpucampus-test/papers:1", python=listed.python)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    _reach_out(monkeypatch)
    try:
        made = image_audit.make(engine.client, variant, tmp_path, cis=shutil.which("oscap") is not None)
    except PackageError as error:
        pytest.skip(f"the rules of the CIS benchmark cannot be had from Debian's mirror: {error}")
    print(made)
    sbom = json.loads((Path(made.folder) / "sbom.json").read_text())
    kinds = {part["bom-ref"].partition("/")[0] for part in sbom["components"]}
    assert {"pkg:pypi", "pkg:deb"} <= kinds
    assert "pkg:pypi/jupyterlab" in {part["bom-ref"].partition("@")[0] for part in sbom["components"]}
    assert made.python > 50
    assert made.debian > 50
    assert (Path(made.folder) / "requirements.lock").read_text().count("--hash=sha256:") > 50
    if made.cis is not None:
        assert made.cis.counts["notapplicable"] > 50
        assert "CIS" in (Path(made.folder) / "cis-report.html").read_text()

    baked = image_audit.bake(engine.client, variant, tmp_path)
    image = engine.client.images.get(variant.image)
    assert (image.id, image.labels[image_audit.AUDITED]) == (baked, made.image)
    assert image.labels["gpucampus.inputs"] == engine.client.images.get(listed.image).labels["gpucampus.inputs"]
    assert engine.output_of(baked, ["cat", "/audit/sbom.json"]) == (Path(made.folder) / "sbom.json").read_text()
    assert judge(variant, baked, (), read(tmp_path), "") is None
    with pytest.raises(ImageProblem, match="already"):
        image_audit.bake(engine.client, variant, tmp_path)
    engine.client.images.remove(variant.image, force=True)
