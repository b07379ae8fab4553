"""The stand-in NVML library behaves as NVIDIA's does where the hub relies on it; needs gcc, neither root nor Docker."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.gpus.make import INVENTORY, SimulatedGPUs, SimulationError, build, read_inventory

# A process of its own for each question: NVML's bindings keep one library for good.
ASK = """
import ctypes, json, sys
import pynvml as n
n.nvmlLib = ctypes.CDLL(sys.argv[1])
def ask():
    n.nvmlInit()
{body}
try:
    print(json.dumps(ask()))
except n.NVMLError as error:
    print(json.dumps(str(error)))
"""
UUIDS = """
    return [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]
"""


def ask(gpus: SimulatedGPUs, body: str, **environment: str) -> Any:
    """The answer of the bindings on the stand-in library."""
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(body=body), str(gpus.library)],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def edit(gpus: SimulatedGPUs, *changes: tuple[str, str]) -> None:
    text = gpus.inventory.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    gpus.inventory.write_text(text, encoding="utf-8")


def whole(gpus: SimulatedGPUs) -> list[str]:
    return [device.uuid for device in gpus.devices if not device.is_mig]


def test_the_inventory_has_four_gpus_of_which_one_is_split_in_two(plain_gpus: SimulatedGPUs) -> None:
    assert [device.key for device in plain_gpus.devices] == ["0", "1", "2", "3", "3:0", "3:1"]
    assert ask(plain_gpus, UUIDS) == whole(plain_gpus)


def test_everything_is_answered_as_the_inventory_says(plain_gpus: SimulatedGPUs) -> None:
    body = """
    h = n.nvmlDeviceGetHandleByUUID("THIS")
    one, two = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    return [n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion(), n.nvmlDeviceGetName(h),
            n.nvmlDeviceGetIndex(h), n.nvmlDeviceGetMinorNumber(h), one.total >> 20, two.total >> 20, two.used,
            n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU), n.nvmlDeviceGetPowerUsage(h),
            list(n.nvmlDeviceGetCudaComputeCapability(h)), n.nvmlDeviceGetPciInfo(h).bus,
            n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetComputeRunningProcesses(h)]
"""
    answer = ask(plain_gpus, body.replace("THIS", plain_gpus.device("2").uuid))
    assert answer == ["580.95.05", 13000, "NVIDIA L40S", 2, 2, 46068, 46068, 0, 31, 34000, [8, 9], 0x47, 0, []]


def test_a_split_gpu_lists_its_instances_with_their_memory(plain_gpus: SimulatedGPUs) -> None:
    body = """
    h = n.nvmlDeviceGetHandleByIndex(3)
    parts = [n.nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(2)]
    return [n.nvmlDeviceGetMigMode(h)[0], [n.nvmlDeviceGetUUID(p) for p in parts],
            [n.nvmlDeviceGetMemoryInfo(p).total >> 20 for p in parts], [n.nvmlDeviceGetGpuInstanceId(p) for p in parts],
            n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[1]))]
"""
    instances = [plain_gpus.device(key).uuid for key in ("3:0", "3:1")]
    assert ask(plain_gpus, body) == [1, instances, [19968, 19968], [1, 2], plain_gpus.device("3").uuid]


def test_a_gpu_whose_node_is_missing_is_not_listed(own_gpus: SimulatedGPUs) -> None:
    (own_gpus.device_dir / "nvidia1").unlink()
    left = [uuid for uuid in whole(own_gpus) if uuid != own_gpus.device("1").uuid]
    assert ask(own_gpus, UUIDS) == left


def test_an_instance_whose_node_is_missing_is_not_listed(own_gpus: SimulatedGPUs) -> None:
    (own_gpus.device_dir / own_gpus.device("3:0").nodes[-1]).unlink()
    body = "    return n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(n.nvmlDeviceGetHandleByIndex(3), 0))"
    assert ask(own_gpus, body) == own_gpus.device("3:1").uuid


def test_without_the_control_node_no_driver_is_loaded(own_gpus: SimulatedGPUs) -> None:
    (own_gpus.device_dir / "nvidiactl").unlink()
    assert ask(own_gpus, UUIDS) == "Driver Not Loaded"


def test_a_change_is_seen_by_a_process_that_runs_already(own_gpus: SimulatedGPUs) -> None:
    body = f"""
    import pathlib
    file = pathlib.Path({str(own_gpus.inventory)!r})
    h = n.nvmlDeviceGetHandleByIndex(0)
    before = len(n.nvmlDeviceGetComputeRunningProcesses(h))
    text = file.read_text()
    file.write_text(text.replace("memory_mib = 40960", "memory_mib = 40960\\nused_mib = 512\\nprocess = 4242 512", 1))
    after = n.nvmlDeviceGetComputeRunningProcesses(h)
    used = n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used >> 20
    busy = [before, [(p.pid, p.usedGpuMemory >> 20) for p in after], used]
    file.write_text(text.replace("[gpu 0]", "[gpu 0]\\nlost = 1"))
    try:
        n.nvmlDeviceGetUUID(h)
    except n.NVMLError as error:
        return [*busy, str(error)]
"""
    assert ask(own_gpus, body) == [0, [[4242, 512]], 512, "GPU is lost"]


def test_one_lost_gpu_does_not_hide_the_others(own_gpus: SimulatedGPUs) -> None:
    edit(own_gpus, ("[gpu 1]", "[gpu 1]\nlost = 1"))
    body = """
    found = []
    for i in range(n.nvmlDeviceGetCount()):
        try:
            found.append(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)))
        except n.NVMLError_GpuIsLost:
            found.append("lost")
    return found
"""
    first, _, third, fourth = whole(own_gpus)
    assert ask(own_gpus, body) == [first, "lost", third, fourth]


def test_a_driver_that_does_not_start_says_its_code(own_gpus: SimulatedGPUs) -> None:
    edit(own_gpus, ("driver_version", "init_error = 18\ndriver_version"))
    assert "version mismatch" in ask(own_gpus, UUIDS)


def test_the_environment_names_another_inventory_and_folder(own_gpus: SimulatedGPUs, tmp_path: Path) -> None:
    other = tmp_path / "other.ini"
    other.write_text("[gpu 7]\nuuid = GPU-other\nminor = 1\n", encoding="utf-8")
    named = {"GPUCAMPUS_SIM_INVENTORY": str(other), "GPUCAMPUS_SIM_DEVICES": str(own_gpus.device_dir)}
    assert ask(own_gpus, UUIDS, **named) == ["GPU-other"]


def test_many_threads_may_ask_while_the_file_changes(own_gpus: SimulatedGPUs) -> None:
    body = f"""
    import pathlib, threading
    file = pathlib.Path({str(own_gpus.inventory)!r})
    text, wrong, done = file.read_text(), [], threading.Event()
    def look():
        while not done.is_set():
            try:
                uuid = n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(2))
            except n.NVMLError as error:  # in a thread it would be printed only
                uuid = str(error)
            if uuid != {own_gpus.device("2").uuid!r}:
                wrong.append(uuid)
    threads = [threading.Thread(target=look) for _ in range(8)]
    for t in threads: t.start()
    for round in range(300):
        new = file.with_suffix(".new")
        new.write_text(text + "#" * round)
        new.replace(file)
    done.set()
    for t in threads: t.join()
    return sorted(set(wrong))
"""
    assert ask(own_gpus, body) == []


def test_the_library_runs_with_the_c_library_of_the_containers(plain_gpus: SimulatedGPUs) -> None:
    """Debian 12 has glibc 2.36; a library that is built on a newer machine must not need more."""
    listed = subprocess.run(
        ["objdump", "-T", str(plain_gpus.library)], check=True, capture_output=True, text=True
    ).stdout
    needed = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", listed)}
    assert needed
    assert max(needed) <= (2, 36)
    assert "isoc23" not in listed


def test_building_again_changes_nothing(own_gpus: SimulatedGPUs) -> None:
    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in own_gpus.folder.rglob("*") if path.is_file()}

    edit(own_gpus, ("temperature = 34", "temperature = 50"))
    before = times() | {"nvidia.json": 0}
    build(own_gpus.folder, plain=True)
    kept = {name: time for name, time in times().items() if name.startswith(("lib", "inventory"))}
    assert kept == {name: before[name] for name in kept}
    assert "temperature = 50" in own_gpus.inventory.read_text(encoding="utf-8")


def test_the_cdi_spec_names_each_device_by_key_and_uuid_and_all(plain_gpus: SimulatedGPUs) -> None:
    spec = json.loads((plain_gpus.cdi_dir / "nvidia.json").read_text(encoding="utf-8"))
    names = [name for device in plain_gpus.devices for name in (device.key, device.uuid)]
    assert [device["name"] for device in spec["devices"]] == [*names, "all"]
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda text: text + "\n[gpu 9]\nnam = x\n", "nam is not a key of [gpu 9]", id="unknown-key"),
        pytest.param(lambda text: text + "\n[card 9]\n", "[card 9] is not a section", id="unknown-section"),
        pytest.param(lambda text: text + "\n[mig 0/0]\nuuid = x\n", "needs a [gpu 0] with mig = 1", id="mig-off"),
        pytest.param(lambda text: text + "\n[gpu 9]\nname = x\n", "needs a uuid of its own", id="no-uuid"),
        pytest.param(lambda text: text + "\n[gpu 9]\nuuid = x\nnvlink = 0\n", "does not lead back", id="half-a-link"),
    ],
)
def test_a_wrong_inventory_is_refused_by_name(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    file = tmp_path / "inventory.ini"
    file.write_text(change(INVENTORY.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(SimulationError, match=re.escape(said)):
        read_inventory(file)


def test_health_is_counted_where_the_inventory_has_it_and_else_not_offered(plain_gpus: SimulatedGPUs) -> None:
    body = """
    def errors(i):
        try:
            return n.nvmlDeviceGetTotalEccErrors(n.nvmlDeviceGetHandleByIndex(i), 1, 0)
        except n.NVMLError_NotSupported as error:
            return str(error)
    (field,) = n.nvmlDeviceGetFieldValues(n.nvmlDeviceGetHandleByIndex(0), [n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return [errors(0), errors(2), list(n.nvmlDeviceGetRemappedRows(n.nvmlDeviceGetHandleByIndex(0))), field.nvmlReturn]
"""
    assert ask(plain_gpus, body) == [0, "Not Supported", [0, 0, 0, 0], 3]


def test_two_gpus_are_joined_where_the_inventory_says_so(plain_gpus: SimulatedGPUs) -> None:
    body = """
    h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(4)]
    return [n.nvmlDeviceGetP2PStatus(h[a], h[b], n.NVML_P2P_CAPS_INDEX_NVLINK) for a, b in [(0, 1), (1, 0), (0, 2)]]
"""
    assert ask(plain_gpus, body) == [0, 0, 5]


def test_the_list_of_mig_minors_has_the_form_of_the_driver_s(plain_gpus: SimulatedGPUs) -> None:
    assert plain_gpus.mig_minors.read_text(encoding="ascii").splitlines() == [
        "config 1",
        "monitor 2",
        "gpu3/gi1/access 417",
        "gpu3/gi1/ci0/access 418",
        "gpu3/gi2/access 426",
        "gpu3/gi2/ci0/access 427",
    ]
