"""The inventory is what the driver says, and a driver in trouble holds nobody and hides nothing."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.demo.gpus.make import SimulatedGPUs
from spawner import nvml
from spawner.core.model import Node
from spawner.nvml import Inventory, InventoryFailure
from spawner.settings import GPUSettings
from tests.rig.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent


def gpu_settings(gpus: SimulatedGPUs, **changes: object) -> GPUSettings:
    values = {"library": gpus.library, "device_dir": gpus.device_dir, "simulated": True}
    return GPUSettings.model_validate(values | changes)


async def found(gpus: SimulatedGPUs, known: Node | None = None) -> Node:
    node = await nvml.read_inventory(gpu_settings(gpus), "node-1", known=known)
    assert isinstance(node, Node)
    return node


def edit(gpus: SimulatedGPUs, change: Callable[[str], str]) -> None:
    text = gpus.inventory.read_text()
    assert change(text) != text
    gpus.inventory.write_text(change(text))


def lose(gpus: SimulatedGPUs, number: int) -> None:
    edit(gpus, lambda text: text.replace(f"[gpu {number}]", f"[gpu {number}]\nlost = 1"))


async def test_all_gpus_are_listed_with_what_the_rules_need(plain_gpus):
    node = await found(plain_gpus)
    wholes = [device for device in plain_gpus.devices if not device.is_mig]
    assert [gpu.uuid for gpu in node.gpus] == [device.uuid for device in wholes]
    assert [gpu.index for gpu in node.gpus] == [0, 1, 2, 3]
    assert [gpu.devices for gpu in node.gpus] == [(f"nvidia{i}",) for i in range(4)]
    assert [gpu.compute_capability for gpu in node.gpus] == [80, 80, 89, 80]
    assert node.gpus[0].memory_bytes == 40960 << 20
    assert node.gpus[2].name == "NVIDIA L40S"
    assert not any(gpu.unhealthy for gpu in node.gpus)
    assert (node.name, node.driver, node.simulated) == ("node-1", "580.95.05", True)
    assert node.memory_bytes > 0
    assert node.cpus >= 1


async def test_mig_instances_are_below_their_gpu(plain_gpus):
    node = await found(plain_gpus)
    assert [gpu.mig_enabled for gpu in node.gpus] == [False, False, False, True]
    assert [mig.uuid for mig in node.gpus[3].mig] == [device.uuid for device in plain_gpus.devices if device.is_mig]
    assert {(mig.profile, mig.memory_bytes) for mig in node.gpus[3].mig} == {("3g.20gb", 19968 << 20)}


async def test_a_lost_gpu_that_was_known_stays_as_unhealthy_and_the_others_stay_well(own_gpus):
    before = await found(own_gpus)
    lose(own_gpus, 1)
    after = await found(own_gpus, known=before)
    assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in before.gpus]
    assert [gpu.unhealthy for gpu in after.gpus] == ["", "GPU is lost", "", ""]


async def test_a_lost_gpu_that_nobody_knew_does_not_hide_the_others(own_gpus):
    lose(own_gpus, 1)
    assert [gpu.index for gpu in (await found(own_gpus)).gpus] == [0, 2, 3]


async def test_a_gpu_that_comes_back_is_well_again(own_gpus):
    before = await found(own_gpus)
    text = own_gpus.inventory.read_text()
    lose(own_gpus, 1)
    ill = await found(own_gpus, known=before)
    own_gpus.inventory.write_text(text)
    assert await found(own_gpus, known=ill) == before


async def test_a_gpu_that_fell_off_the_bus_stays_as_unhealthy(own_gpus):
    before = await found(own_gpus)
    (own_gpus.device_dir / "nvidia2").unlink()
    after = await found(own_gpus, known=before)
    assert {gpu.uuid for gpu in after.gpus} == {gpu.uuid for gpu in before.gpus}
    (gone,) = [gpu for gpu in after.gpus if gpu.unhealthy]
    assert (gone.uuid, gone.unhealthy) == (before.gpus[2].uuid, "no longer listed by the driver")


async def test_without_a_driver_there_is_a_node_without_gpus_and_a_reason(own_gpus):
    (own_gpus.device_dir / "nvidiactl").unlink()
    answer = await nvml.ask(gpu_settings(own_gpus), "node-1")
    assert isinstance(answer, Inventory)
    assert (answer.node.gpus, answer.node.driver) == ((), "")
    assert answer.reason == "there is no NVIDIA driver here (Driver Not Loaded)"


async def test_a_driver_that_went_away_leaves_the_known_gpus_unhealthy(own_gpus):
    before = await found(own_gpus)
    (own_gpus.device_dir / "nvidiactl").unlink()
    after = await found(own_gpus, known=before)
    assert len(after.gpus) == 4
    assert all(gpu.unhealthy for gpu in after.gpus)


async def test_why_there_are_no_gpus_is_logged(own_gpus, caplog):
    (own_gpus.device_dir / "nvidiactl").unlink()
    await found(own_gpus)
    assert "Driver Not Loaded" in caplog.text


async def test_a_library_that_fails_as_a_whole_is_a_failure_and_not_an_empty_machine(own_gpus):
    edit(own_gpus, lambda text: f"init_error = 18\n{text}")
    answer = await nvml.read_inventory(gpu_settings(own_gpus), "node-1")
    assert isinstance(answer, InventoryFailure)
    assert "mismatch" in answer.reason


async def test_a_named_library_that_is_not_there_is_a_failure_that_names_it(own_gpus, tmp_path):
    answer = await nvml.read_inventory(gpu_settings(own_gpus, library=tmp_path / "none.so"), "node-1")
    assert isinstance(answer, InventoryFailure)
    assert "none.so" in answer.reason


async def test_inventory_none_asks_nobody(monkeypatch):
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)
    answer = await nvml.ask(GPUSettings(inventory="none"), "node-1")
    assert isinstance(answer, Inventory)
    assert answer.node.gpus == ()
    assert 'gpus.inventory = "none"' in answer.reason


@pytest.fixture
def hanging_library(tmp_path: Path) -> Path:
    """A library that never returns from being loaded."""
    source, library = tmp_path / "hangs.c", tmp_path / "libhangs.so"
    source.write_text(
        "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


async def test_a_hung_driver_is_a_failure_in_time_and_gets_no_second_question(plain_gpus, hanging_library, monkeypatch):
    monkeypatch.setattr(nvml, "_stuck", [])
    kill = asyncio.subprocess.Process.kill
    # SIGKILL has no effect on a process inside a hung driver; here the test withholds it
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda _self: None)
    async with asyncio.timeout(8):
        first = await nvml.read_inventory(gpu_settings(plain_gpus, library=hanging_library), "node-1", timeout_s=1)
        second = await nvml.read_inventory(gpu_settings(plain_gpus), "node-1")
    assert first == InventoryFailure(reason="the NVIDIA driver did not answer within 1 s")
    assert isinstance(second, InventoryFailure)
    assert "still hangs" in second.reason
    kill(nvml._stuck[0])
    await wait_until(lambda: nvml._stuck[0].returncode is not None, timeout=10)
    assert len((await found(plain_gpus)).gpus) == 4


def test_the_minors_of_mig_capabilities_are_read_from_the_driver_s_list(plain_gpus, tmp_path):
    listed = tmp_path / "mig-minors"
    listed.write_text(
        "config 1\nmonitor 2\ngpu3/gi1/access 417\ngpu3/gi1/ci0/access 418\n"
        "gpu3/gi2/access 426\ngpu3/gi2/ci0/access 427\n"
    )
    script = (
        "import json, sys; from pathlib import Path; from spawner.nvml import read_library\n"
        "answer = read_library(library=Path(sys.argv[1]), device_dir=Path(sys.argv[2]), mig_minors=Path(sys.argv[3]))\n"
        "print(json.dumps([mig['devices'] for mig in answer['gpus'][3]['mig']]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, plain_gpus.library, plain_gpus.device_dir, listed],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    expected = [list(device.nodes[3:]) for device in plain_gpus.devices if device.is_mig]
    assert json.loads(run.stdout) == expected
    assert expected[0] == ["nvidia-caps/nvidia-cap417", "nvidia-caps/nvidia-cap418"]


def test_the_module_prints_json_for_people_who_look_by_hand(plain_gpus):
    command = [
        sys.executable,
        "-m",
        "spawner.nvml",
        "--library",
        plain_gpus.library,
        "--device-dir",
        plain_gpus.device_dir,
    ]
    run = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    answer = json.loads(run.stdout)
    assert answer["driver"] == "580.95.05"
    assert [gpu["index"] for gpu in answer["gpus"]] == [0, 1, 2, 3]
