"""What the process-wide parts do together, without an engine."""

import asyncio
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spawner.core.ledger import LABEL, Container, to_labels
from spawner.runtime import UNREADABLE, Runtime
from spawner.settings import Settings
from tests.core.strategies import lease
from tests.rig.waiting import wait_until
from tests.test_nvml import gpu_settings
from tests.test_settings import LEAST


@pytest.fixture
def shared(own_gpus, tmp_path: Path) -> Iterator[Runtime]:
    settings = Settings.model_validate(tomllib.loads(LEAST) | {"state": str(tmp_path / "state")})
    made = Runtime(settings.model_copy(update={"gpus": gpu_settings(own_gpus)}))
    yield made
    made._writer.close(1)
    made.records.close()


async def test_a_gpu_of_a_container_that_cannot_be_read_is_shown_as_out_of_service(shared):
    await shared.watch.read()
    first, *others = shared.node.gpus
    labels = to_labels(lease(1, first.uuid)) | {LABEL + "schema": "99"}
    shared.engine.cache.put(Container(id="c1", name="n", state="running", labels=labels))
    shown = {gpu.uuid: gpu.unhealthy for gpu in shared.shown().gpus}
    assert shown == {first.uuid: UNREADABLE} | {gpu.uuid: "" for gpu in others}


async def test_old_history_is_forgotten_when_the_hub_starts(shared, monkeypatch):
    now = datetime.now(UTC)
    for number, days in ((1, 400), (2, 300)):
        shared.records.lease_granted(lease(number, "GPU-a"))
        shared.records.lease_ended(lease(number).id, "stopped", now - timedelta(days=days))
    keeper = asyncio.create_task(shared._keep())
    await wait_until(lambda: len(shared.records.history()) == 1, 10)
    keeper.cancel()
    assert [past.lease for past in shared.records.history()] == [lease(2).id]


async def test_old_history_is_forgotten_again_every_day(shared, monkeypatch):
    asked: list[datetime] = []
    monkeypatch.setattr(shared.audit, "forget", asked.append)
    monkeypatch.setattr("spawner.runtime.KEEP_S", 0.01)
    keeper = asyncio.create_task(shared._keep())
    await wait_until(lambda: asked, 10)
    await asyncio.sleep(0.05)
    assert len(asked) == 1, "not at every round"
    keeper.cancel()
    monkeypatch.setattr("spawner.runtime.FORGET_S", 0.0)
    keeper = asyncio.create_task(shared._keep())
    await wait_until(lambda: len(asked) > 3, 10)
    keeper.cancel()


async def test_what_was_quarantined_when_the_hub_ended_is_so_when_it_starts(shared, monkeypatch):
    async def no_answer(_timeout_s: float) -> bool:
        return False

    async def no_trouble() -> None:
        return None

    monkeypatch.setattr(shared.arbiter, "begin", no_answer)
    monkeypatch.setattr(shared.storage, "prepare", no_trouble)
    held = lease(1, "GPU-a", hub="gpucampus")
    shared.engine.cache.put(Container(id="c1", name="n", state="running", labels=to_labels(held)))
    shared.records.lease_granted(held)
    shared.records.lease_quarantined(held.id, "stop: it hangs")
    await shared.begin()
    assert shared.arbiter.quarantined() == {held.id: "stop: it hangs"}
    await shared.close()
