"""The doctor on a real engine: limits are read in a container, and nothing of the look is left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spawner import container
from spawner.core.ledger import LABEL
from spawner.docker_api import EngineRefuses
from spawner.doctor import limits
from spawner.doctor.engine import ask_engine, check_engine
from spawner.findings import Status
from spawner.settings import ContainerSettings
from tests.conftest import STATE
from tests.doctor.trees import machine_of, statuses
from tests.rig.engine import PrivateEngine
from tests.rig.probe_image import load_probe_image

pytestmark = pytest.mark.docker

UID = 299_999
ASKED = limits.numbers(ContainerSettings(nofile=1024))  # no machine has a lower one


@pytest.fixture
def image(engine: PrivateEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    yield load_probe_image(engine, STATE.parent / "cache")
    left = engine.client.containers.list(all=True, filters={"label": f"{LABEL}kind={limits.KIND}"})
    assert left == [], "the look's container is still there"


def test_limits_are_read_in_a_container_that_is_made_as_a_server_is(image):
    seen = limits.measure(image, ASKED, hub="gpucampus", uid=UID)
    found = statuses(limits.judge(seen, ASKED, uid=UID, swap_total=1, cgroup_driver="cgroupfs"))
    assert set(found.values()) == {Status.OK}, (found, seen)


def test_an_engine_that_drops_a_limit_is_found(image, monkeypatch):
    make = container.host_config

    def without(*args, **kwargs):
        dropped = {"mem_limit", "memswap_limit", "pids_limit", "cpu_quota", "shm_size", "ulimits", "cap_drop"}
        return {key: value for key, value in make(*args, **kwargs).items() if key not in dropped}

    monkeypatch.setattr(container, "host_config", without)
    seen = limits.measure(image, ASKED, hub="gpucampus", uid=UID)
    found = statuses(limits.judge(seen, ASKED, uid=UID, swap_total=1, cgroup_driver="cgroupfs"))
    for name in ("memory", "pids", "processors", "shm"):
        assert found[f"limit {name}"] is Status.FAIL
    assert found["limit swap"] is Status.WARN


def test_a_container_that_fails_says_so_and_is_removed(image, monkeypatch, tmp_path: Path):
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit('no cgroups here')")
    monkeypatch.setattr(limits, "_CHILD", child)
    with pytest.raises(EngineRefuses, match="no cgroups here"):
        limits.measure(image, ASKED, hub="gpucampus", uid=UID)


def test_the_engine_is_told_by_its_own_words(image, tmp_path):
    facts = ask_engine()
    machine = machine_of(tmp_path, version=facts.version, info=facts.info)
    assert statuses(check_engine(machine)).get("engine") is Status.OK
