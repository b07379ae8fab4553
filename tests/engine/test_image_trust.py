"""A moved tag and a missing image are refused at once, by what the engine itself says, and no container is made."""

import json
import time
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from deploy import images
from deploy.image_records import record
from spawner.core import catalog
from spawner.core.model import Code, Refusal, Variant
from spawner.runtime import Runtime
from spawner.settings import Settings
from tests.rig.engine import PrivateEngine
from tests.test_settings import LEAST

pytestmark = pytest.mark.docker

REFERENCE = "gpucampus-test/trusted:1"
VARIANT = Variant(name="probe", title="Probe", image=REFERENCE)
AT_ONCE_S = 2.0
CATALOG = f"""
version = 1
[base]
image = "gpucampus-test/base"
suite = "bookworm"
[variants.probe]
title = "Probe"
folder = "images/plain"
image = "{REFERENCE}"
default = true
[variants.missing]
title = "Missing"
folder = "images/plain"
image = "gpucampus-test/missing:1"
"""


@pytest.fixture
def shared(engine: PrivateEngine, probe_image: str, tmp_path: Any, monkeypatch: Any) -> Iterator[Runtime]:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    engine.client.images.get(probe_image).tag(REFERENCE)
    made = Runtime(Settings.model_validate(tomllib.loads(LEAST) | {"state": str(tmp_path / "state")}))
    yield made
    made.engine.close()
    made._writer.close(1)
    made.records.close()


async def test_a_moved_tag_and_a_missing_image_are_refused_at_once_and_the_recorded_one_is_not(
    shared: Runtime, engine: PrivateEngine, probe_image: str
):
    record("probe", probe_image, "1", state=shared.settings.state)
    assert await shared.image_of(VARIANT) == probe_image

    with engine.container(probe_image, ["true"]) as container:
        moved = container.commit(repository="gpucampus-test/trusted", tag="1")
    assert moved.id != probe_image
    began = time.monotonic()
    refused = await shared.image_of(VARIANT)
    assert isinstance(refused, Refusal)
    assert (refused.code, time.monotonic() - began < AT_ONCE_S) == (Code.IMAGE_CHANGED, True)

    engine.client.images.remove(REFERENCE, force=True)
    began = time.monotonic()
    missing = await shared.image_of(VARIANT)
    assert isinstance(missing, Refusal)
    assert (missing.code, time.monotonic() - began < AT_ONCE_S) == (Code.VARIANT_NOT_BUILT, True)
    assert engine.client.containers.list(all=True) == []


def test_the_list_of_images_says_what_is_not_recorded(
    shared: Runtime, probe_image: str, tmp_path: Any, monkeypatch: Any, capsys: Any
):
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(tmp_path / "none.toml"))
    monkeypatch.setenv("GPUCAMPUS_STATE", str(tmp_path))
    monkeypatch.setattr(images, "read_catalog", lambda: catalog.parse(CATALOG))

    def listed() -> tuple[int, dict[str, str], list[str]]:
        status = images.main(["list"])
        answer = json.loads(capsys.readouterr().out)
        return status, {row["variant"]: row["state"] for row in answer["rows"]}, answer["findings"]

    assert listed() == (1, {"probe": "unrecorded", "missing": "not built"}, ["probe: unrecorded"])
    record("probe", probe_image, "1", state=tmp_path)
    assert listed() == (0, {"probe": "recorded", "missing": "not built"}, [])
