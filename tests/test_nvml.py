"""The inventory is what the driver says, and a driver in trouble holds nobody and hides nothing."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.demo.gpus.make import SimulatedGPUs
from spawner import nvml
from spawner.core.model import Node
from spawner.core.readings import GPUProcess
from spawner.injection import injection_for
from spawner.nvml import Inventory, InventoryFailure
from spawner.settings import GPUSettings
from tests.rig.waiting import wait_until

ANN = "a1" * 32
ROOT = Path(__file__).resolve().parent.parent


def gpu_settings(gpus: SimulatedGPUs, **changes: object) -> GPUSettings:
    values = {"library": gpus.library, "device_dir": gpus.device_dir, "simulated": True}
    return GPUSettings.model_validate(values | changes)


async def look(gpus: SimulatedGPUs, known: Node | None = None, proc: Path = Path("/proc")) -> Inventory:
    answer = await nvml.ask(gpu_settings(gpus), "node-1", known=known, proc=proc)
    assert isinstance(answer, Inventory)
    return answer


async def found(gpus: SimulatedGPUs, known: Node | None = None) -> Node:
    return (await look(gpus, known)).node


def edit(gpus: SimulatedGPUs, change: Callable[[str], str]) -> None:
    text = gpus.inventory.read_text()
    assert change(text) != text
    gpus.inventory.write_text(change(text))


def add(gpus: SimulatedGPUs, section: str, *lines: str) -> None:
    """Put lines at the end of a section of the inventory, where they win over equal keys above."""
    edit(gpus, lambda text: re.sub(rf"(\[{section}\][^\[]*)", rf"\1{chr(10).join(lines)}{chr(10) * 2}", text))


def lose(gpus: SimulatedGPUs, number: int) -> None:
    add(gpus, f"gpu {number}", "lost = 1")


def run_in(proc: Path, pid: int, container: str) -> None:
    """Make a /proc in which a process is in a container."""
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n")


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


async def test_a_library_that_fails_as_a_whole_is_a_failure_and_not_an_empty_machine(own_gpus):
    edit(own_gpus, lambda text: f"init_error = 18\n{text}")
    answer = await nvml.ask(gpu_settings(own_gpus), "node-1")
    assert isinstance(answer, InventoryFailure)
    assert "mismatch" in answer.reason


async def test_a_named_library_that_is_not_there_is_a_failure_that_names_it(own_gpus, tmp_path):
    answer = await nvml.ask(gpu_settings(own_gpus, library=tmp_path / "none.so"), "node-1")
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
        first = await nvml.ask(gpu_settings(plain_gpus, library=hanging_library), "node-1", timeout_s=1)
        second = await nvml.ask(gpu_settings(plain_gpus), "node-1")
    assert first == InventoryFailure(reason="the NVIDIA driver did not answer within 1 s")
    assert isinstance(second, InventoryFailure)
    assert "still hangs" in second.reason
    kill(nvml._stuck[0])
    await wait_until(lambda: nvml._stuck[0].returncode is not None, timeout=10)
    assert len((await found(plain_gpus)).gpus) == 4


async def test_mig_instances_name_their_nodes_by_the_list_beside_the_nodes(plain_gpus):
    (gpu,) = [gpu for gpu in (await found(plain_gpus)).gpus if gpu.mig]
    named = [(*gpu.devices, *part.devices) for part in gpu.mig]
    assert named == [device.nodes[2:] for device in plain_gpus.devices if device.is_mig]
    assert gpu.mig[0].devices == ("nvidia-caps/nvidia-cap417", "nvidia-caps/nvidia-cap418")


async def test_a_granted_instance_gets_its_own_nodes_and_not_its_neighbours(plain_gpus):
    node = await found(plain_gpus)
    mine, other = node.gpus[3].mig
    given = injection_for(gpu_settings(plain_gpus, injection="nodes")).inject([mine.uuid], node).host_config["devices"]
    inside = [line.split(":")[1].removeprefix("/dev/") for line in given]
    assert inside == ["nvidiactl", "nvidia-uvm", "nvidia3", *mine.devices]
    assert not set(inside) & set(other.devices)


async def test_an_instance_that_the_list_does_not_have_has_no_nodes(own_gpus):
    own_gpus.mig_minors.write_text("config 1\ngpu3/gi1/access 417\ngpu3/gi1/ci0/access 418\n")
    first, second = (await found(own_gpus)).gpus[3].mig
    assert (len(first.devices), second.devices) == (2, ())


async def test_nvlink_peers_are_uuids_and_mutual(plain_gpus):
    first, second, third, split = (await found(plain_gpus)).gpus
    assert first.nvlink_peers == (second.uuid,)
    assert second.nvlink_peers == (first.uuid,)
    assert third.nvlink_peers == split.nvlink_peers == ()


async def test_a_lost_peer_is_no_peer_and_takes_nobody_with_it(own_gpus):
    lose(own_gpus, 1)
    node = await found(own_gpus)
    assert [(gpu.index, gpu.nvlink_peers, gpu.unhealthy) for gpu in node.gpus] == [
        (0, (), ""),
        (2, (), ""),
        (3, (), ""),
    ]


async def test_an_order_of_the_driver_s_own_moves_nobody(own_gpus):
    before = await found(own_gpus)
    edit(own_gpus, lambda text: "".join([(parts := re.split(r"(?=\n\[gpu )", text))[0], *parts[:0:-1]]))
    after = await found(own_gpus, known=before)
    assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in reversed(before.gpus)]
    devices = {gpu.uuid: (gpu.devices, gpu.nvlink_peers, gpu.name) for gpu in before.gpus}
    assert {gpu.uuid: (gpu.devices, gpu.nvlink_peers, gpu.name) for gpu in after.gpus} == devices
    assert not any(gpu.unhealthy for gpu in after.gpus)


async def test_the_driver_s_cuda_is_read(plain_gpus):
    assert (await found(plain_gpus)).cuda == "13.0"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("ecc_uncorrected = 2", "2 memory errors", id="ecc"),
        pytest.param("remap_pending = 1", "waits to be taken out of use", id="row-pending"),
        pytest.param("retirement_pending = 1", "waits to be taken out of use", id="page-pending"),
        pytest.param("remap_failed = 1", "exchanged", id="row-failed"),
        pytest.param("recovery_action = 1", "the driver asks for a reset of the GPU", id="xid-reset"),
        pytest.param("recovery_action = 9", "recovery action 9", id="xid-of-a-newer-driver"),
    ],
)
async def test_a_gpu_that_counts_a_fault_is_unhealthy_and_the_three_others_are_offered(own_gpus, line, said):
    add(own_gpus, "gpu 1", line)
    node = await found(own_gpus)
    assert said in node.gpus[1].unhealthy
    assert [gpu.unhealthy for gpu in node.gpus if gpu.index != 1] == ["", "", ""]


async def test_what_a_gpu_does_not_offer_is_no_fault(own_gpus):
    edit(own_gpus, lambda text: re.sub(r"(ecc_uncorrected|remap_\w+|temperature|power_mw) = .*\n", "", text))
    assert not any(gpu.unhealthy for gpu in (await found(own_gpus)).gpus)


async def test_a_reading_is_as_old_as_its_question(plain_gpus, monkeypatch):
    began, run = [], nvml._run

    async def noting(*args):
        began.append(datetime.now(UTC))
        return await run(*args)

    monkeypatch.setattr(nvml, "_run", noting)
    before = datetime.now(UTC)
    answer = await look(plain_gpus)
    assert {before <= reading.at <= began[0] for reading in answer.readings.values()} == {True}


async def test_a_reading_says_what_a_gpu_does(own_gpus, tmp_path):
    add(own_gpus, "gpu 0", "used_mib = 700", "utilization = 83", "process = 41 600", "process = 42 100")
    run_in(tmp_path, 41, ANN)
    answer = await look(own_gpus, proc=tmp_path)
    reading = answer.readings[answer.node.gpus[0].uuid]
    assert (reading.temperature_c, reading.power_w, reading.use_percent) == (34, 58.0, 83)
    assert reading.processes == (
        GPUProcess(pid=41, memory_bytes=600 << 20, container=ANN),
        GPUProcess(pid=42, memory_bytes=100 << 20, container=""),
    )


async def test_memory_that_the_driver_keeps_for_itself_is_not_in_use(plain_gpus):
    answer = await look(plain_gpus)
    assert "reserved_mib = 624" in plain_gpus.inventory.read_text()
    assert {reading.memory_used_bytes for reading in answer.readings.values()} == {0}


async def test_each_mig_instance_has_a_reading_of_its_own(own_gpus):
    add(own_gpus, "mig 3/1", "used_mib = 900", "process = 77 900")
    answer = await look(own_gpus)
    first, second = answer.node.gpus[3].mig
    assert answer.readings[first.uuid].processes == ()
    assert answer.readings[second.uuid].processes == (GPUProcess(pid=77, memory_bytes=900 << 20),)
    assert answer.readings[second.uuid].memory_used_bytes == 900 << 20
    assert answer.readings[second.uuid].temperature_c is None


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
