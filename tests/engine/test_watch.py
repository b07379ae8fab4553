"""What the inventory says holds on a real engine: MIG instances by their nodes, processes by their container."""

import os
from pathlib import Path

import pytest

from spawner import nvml
from spawner.core.readings import container_of
from spawner.injection import NodesInjection
from spawner.watch import end_process
from tests.conftest import STATE
from tests.engine import test_injection as injecting
from tests.rig.engine import PrivateEngine
from tests.rig.probe_image import load_probe_image
from tests.rig.waiting import wait_until_sync
from tests.test_nvml import gpu_settings

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("key", ["3:0", "3:1"])
async def test_an_instance_of_the_hub_s_own_inventory_is_handed_over_by_its_nodes(
    engine: PrivateEngine, key, monkeypatch
):
    answer = await nvml.ask(gpu_settings(engine.gpus), "here")
    assert isinstance(answer, nvml.Inventory)
    monkeypatch.setattr(injecting, "node_of", lambda _gpus: answer.node)
    site = injecting.Site(engine, NodesInjection(device_dir=str(engine.gpus.device_dir), files=engine.gpus.files))
    assert injecting.shown(site.look([key])) == injecting.seen_by(site, key)


def test_a_process_in_a_container_is_found_there_and_only_it_is_ended(engine: PrivateEngine) -> None:
    image = load_probe_image(engine, STATE.parent / "cache")
    shell = ["sh", "-c", "sleep 600 & wait"]
    with engine.container(image, shell, init=True) as container, engine.container(image, shell, init=True) as neighbour:
        for made in (container, neighbour):
            made.start()
        wait_until_sync(lambda: len(container.top()["Processes"]) == 3, timeout=30)
        # the host's numbers, as NVML tells them
        (pid,) = [int(row[1]) for row in container.top()["Processes"] if row[-1] == "sleep 600"]
        assert container_of(Path(f"/proc/{pid}/cgroup").read_text()) == container.id
        assert container_of(Path(f"/proc/{os.getpid()}/cgroup").read_text()) == ""
        assert not end_process(pid, str(neighbour.id))
        assert end_process(pid, str(container.id))
        assert container.wait(timeout=30)["StatusCode"] == 0
        neighbour.reload()
        assert neighbour.status == "running"
