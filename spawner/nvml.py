"""The GPUs of this machine, and what they do, as NVIDIA's library tells of them; the only importer of pynvml.

`python -m spawner.nvml` asks the library and prints what it found as JSON. The hub calls `read_inventory`, which runs
just that in a process of its own: a driver in trouble holds whoever asks it, and must never hold the hub.

What must hold: one bad GPU does not hide the others; a GPU that was known and answers no more stays in the list as
unhealthy, so that its lease is not given away; "there is no driver" is an answer, and "nobody answered" is a failure;
what a GPU does not offer (ECC, say) is no fault of it.
"""

import argparse
import asyncio
import ctypes
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml

from spawner.core.model import GPU, MIGInstance, Node
from spawner.core.readings import GPUProcess, Reading, container_of

if TYPE_CHECKING:
    from spawner.settings import GPUSettings  # pydantic would double the time that the child takes to start

__all__ = ["Inventory", "InventoryFailure", "ask", "bare_machine", "read_library"]


_ROOT = Path(__file__).resolve().parent.parent  # where `-m spawner.nvml` is found, installed or not
_PROC = Path("/proc")
_DEV = Path("/dev")
_DRIVER_MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
_MIG_MINOR = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")
_MIG_NAME = re.compile(r"MIG (\S+)$")
_NO_DRIVER = {pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}
_DEAD = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN}

_RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "a reset of the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "a restart of the machine",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "the end of all work between GPUs",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "the end of all work on the GPU and a reset",
}

_stuck: list[asyncio.subprocess.Process] = []  # children that did not end in time; while one lives, no other is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What there is and what it does, and in words why there are no GPUs, where there are none.

    `readings` are by UUID, of GPUs and of MIG instances; a GPU that answers no more has none.
    """

    node: Node
    readings: Mapping[str, Reading] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFailure:
    """Nobody knows what GPUs there are: no answer in time, or a library that fails. `reason` is for the operator."""

    reason: str


def bare_machine(settings: "GPUSettings", node_name: str) -> Node:
    """Give this machine without its GPUs: what is known while nobody can tell of them."""
    return Node(
        name=node_name,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpus=float(os.cpu_count() or 1),
        simulated=settings.simulated,
    )


async def ask(
    settings: "GPUSettings", node_name: str, *, known: Node | None = None, timeout_s: float = 10, proc: Path = _PROC
) -> Inventory | InventoryFailure:
    """Ask for the GPUs of this machine and what they do, in a process of its own.

    Parameters
    ----------
    settings
        Where the library and the device nodes are; the inventory "none" answers without asking.
    node_name
        The name that the node gets.
    known
        The last answer: a GPU that is in it and not in the new one is kept, as unhealthy.
    timeout_s
        How long the library may take.
    proc
        Where the processes are.
    """
    node = bare_machine(settings, node_name)
    if settings.inventory == "none":
        return Inventory(node=node, reason='the settings say gpus.inventory = "none"')
    at = datetime.now(UTC)  # before the question: a reading is never older than it says
    command = [sys.executable, "-m", "spawner.nvml", "--device-dir", str(settings.device_dir), "--proc", str(proc)]
    if settings.library is not None:
        command += ["--library", str(settings.library)]
    answer = await _run(command, timeout_s)
    if isinstance(answer, InventoryFailure):
        return answer
    found = {gpu.uuid: gpu for gpu in map(_gpu, answer["gpus"])}
    kept = {gpu.uuid: _gone(gpu, answer["lost"]) for gpu in known.gpus} if known is not None else {}
    gpus = tuple(sorted((kept | found).values(), key=lambda gpu: (gpu.index, gpu.uuid)))
    reason = "" if gpus else answer["reason"] or "the driver lists no GPU"
    return Inventory(
        node=replace(node, gpus=gpus, driver=answer["driver"], cuda=answer["cuda"]),
        readings={reading["uuid"]: _reading(reading, at) for reading in answer["readings"]},
        reason=reason,
    )


async def _run(command: Sequence[str], timeout_s: float) -> Any:  # noqa: ANN401  # the child's JSON
    _stuck[:] = [child for child in _stuck if child.returncode is None]
    if _stuck:
        return InventoryFailure(reason="an earlier question to the NVIDIA driver still hangs; look at dmesg for Xid")
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await child.communicate()
    except TimeoutError:
        _stuck.append(child)
        return InventoryFailure(reason=f"the NVIDIA driver did not answer within {timeout_s:g} s")
    finally:
        if child.returncode is None:
            child.kill()  # and never waited for: inside the driver it does not die
    if child.returncode != 0:
        last = (err.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return InventoryFailure(reason=f"{last} (status {child.returncode})")
    return json.loads(out)


def _gpu(answer: dict[str, Any]) -> GPU:
    mig = tuple(MIGInstance(**{**item, "devices": tuple(item["devices"])}) for item in answer["mig"])
    lists = {key: tuple(answer[key]) for key in ("devices", "nvlink_peers")}
    return GPU(**{**answer, **lists, "mig": mig})


def _reading(answer: dict[str, Any], at: datetime) -> Reading:
    listed = answer["processes"]
    processes = None if listed is None else tuple(GPUProcess(**item) for item in listed)
    return Reading(**{**answer, "processes": processes, "at": at})


def _gone(gpu: GPU, lost: dict[str, str]) -> GPU:
    return replace(gpu, unhealthy=lost.get(str(gpu.index), "no longer listed by the driver"))


def read_library(*, library: Path | None, device_dir: Path = _DEV, proc: Path = _PROC) -> dict[str, Any]:
    """Ask the library for all GPUs; what `python -m spawner.nvml` prints.

    `lost` has the index and the error of GPUs that did not even say their UUID; `reason` is filled where there is no
    driver. Raises OSError where the library named cannot be loaded, NVMLError where the library fails as a whole.
    """
    if library is not None:
        # pynvml opens the library by its soname; what is loaded with that soname before is what it gets
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    answer: dict[str, Any] = {"driver": "", "cuda": "", "reason": "", "gpus": [], "readings": [], "lost": {}}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value not in _NO_DRIVER:
            raise
        return {**answer, "reason": f"there is no NVIDIA driver here ({error})"}
    try:
        # the driver has one list for the machine; device nodes elsewhere come with a list of their own
        minors = _read_minors(_DRIVER_MIG_MINORS if device_dir == _DEV else device_dir / "mig-minors")
        found: list[tuple[Any, GPU]] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpu, readings = _read_gpu(handle, index, device_dir, minors, proc)
            except pynvml.NVMLError as error:
                answer["lost"][str(index)] = str(error)
                continue
            found.append((handle, gpu))
            answer["readings"] += readings
        answer["gpus"] = [asdict(replace(gpu, nvlink_peers=_peers(handle, found))) for handle, gpu in found]
        answer["driver"] = pynvml.nvmlSystemGetDriverVersion()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        answer["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return answer
    finally:
        pynvml.nvmlShutdown()


class _Asker:
    """Asks one GPU; what it does not support is a default, and the first sign of its death is kept."""

    def __init__(self) -> None:
        self.unhealthy = ""

    def __call__(self, question: Callable[..., Any], *args: object, default: object) -> Any:  # noqa: ANN401 # untyped
        try:
            return question(*args)
        except pynvml.NVMLError as error:
            if error.value in _DEAD:
                self.unhealthy = self.unhealthy or str(error)
            return default


def _read_gpu(
    handle: object, index: int, device_dir: Path, minors: dict[tuple[int, ...], int], proc: Path
) -> tuple[GPU, list[dict[str, Any]]]:
    """Read a GPU with its instances, and what each of them does."""
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    ask_gpu = _Asker()
    total, used = _memory(ask_gpu, handle)
    major, minor = ask_gpu(pynvml.nvmlDeviceGetCudaComputeCapability, handle, default=(0, 0))
    node = ask_gpu(pynvml.nvmlDeviceGetMinorNumber, handle, default=-1)
    mig_enabled = bool(ask_gpu(pynvml.nvmlDeviceGetMigMode, handle, default=[0, 0])[0])
    power = ask_gpu(pynvml.nvmlDeviceGetPowerUsage, handle, default=None)
    rates = ask_gpu(pynvml.nvmlDeviceGetUtilizationRates, handle, default=None)
    reading = {
        "uuid": uuid,
        "memory_used_bytes": used,
        "temperature_c": ask_gpu(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU, default=None),
        "power_w": None if power is None else power / 1000,
        "use_percent": None if rates is None else int(rates.gpu),
        "processes": _processes(ask_gpu, handle, proc),
    }
    mig, readings = _read_mig(handle, ask_gpu, node, minors, proc) if mig_enabled else ((), [])
    name = ask_gpu(pynvml.nvmlDeviceGetName, handle, default="NVIDIA GPU")
    path = device_dir / f"nvidia{node}"
    fault = _fault(ask_gpu, handle)
    if not major:
        fault = fault or "its compute capability cannot be read"
    if not path.exists():
        fault = fault or f"{path} is missing"
    gpu = GPU(
        uuid=uuid,
        index=index,
        name=name,
        memory_bytes=total,
        compute_capability=major * 10 + minor,
        unhealthy=ask_gpu.unhealthy or fault,
        mig_enabled=mig_enabled,
        mig=mig,
        devices=(f"nvidia{node}",) if node >= 0 else (),
    )
    return gpu, [reading, *readings]


def _memory(ask_gpu: _Asker, handle: object) -> tuple[int, int | None]:
    """Total memory, and what is in use without what the driver keeps for itself, which the first version adds in."""
    memory = ask_gpu(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2, default=None)
    memory = memory or ask_gpu(pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
    return (0, None) if memory is None else (int(memory.total), int(memory.used))


def _processes(ask_gpu: _Asker, handle: object, proc: Path) -> list[dict[str, Any]] | None:
    """The compute processes; graphics is not counted, since a display server may draw on a GPU for good.

    One that ended between the driver's answer and the look at /proc is only believed when the driver names it again.
    """
    for attempt in range(2):
        listed = ask_gpu(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle, default=None)
        if listed is None:
            return None
        cgroups = {process.pid: _cgroup(proc, process.pid) for process in listed}
        if attempt or None not in cgroups.values():
            break
    return [
        {
            "pid": process.pid,
            "memory_bytes": process.usedGpuMemory,
            "container": container_of(cgroups[process.pid] or ""),
        }
        for process in listed
    ]


def _cgroup(proc: Path, pid: int) -> str | None:
    try:
        return (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _fault(ask_gpu: _Asker, handle: object) -> str:
    """What the GPU counts of its own memory faults, and what the driver wants done after an Xid error."""
    _, _, pending, failed = ask_gpu(pynvml.nvmlDeviceGetRemappedRows, handle, default=(0, 0, 0, 0))
    if failed:
        return "it could not replace a broken row of its memory: have the GPU exchanged"
    if pending or ask_gpu(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle, default=0):
        return "broken memory waits to be taken out of use: reset the GPU or restart the machine"
    counted = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    if errors := ask_gpu(pynvml.nvmlDeviceGetTotalEccErrors, handle, *counted, default=0):
        return f"{errors} memory errors that ECC could not correct since the driver was loaded: reset the GPU"
    fields = ask_gpu(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION], default=())
    actions = [item.value.uiVal for item in fields if item.nvmlReturn == pynvml.NVML_SUCCESS]
    if actions and actions[0] != pynvml.NVML_GPU_RECOVERY_ACTION_NONE:
        return (
            f"the driver asks for {_RECOVERY.get(actions[0], f'recovery action {actions[0]}')}; look at dmesg for Xid"
        )
    return ""


def _peers(handle: object, others: Sequence[tuple[object, GPU]]) -> tuple[str, ...]:
    """The GPUs that a program reaches by NVLink, directly or over an NVSwitch.

    By NVML's P2P status, which says what the driver lets programs do. The far ends of the single links would be the
    switches, the same for everybody, and the common ancestor of the topology knows PCI Express only.
    """
    peers = []
    for other, gpu in others:
        if other is not handle:
            try:
                status = pynvml.nvmlDeviceGetP2PStatus(handle, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
            except pynvml.NVMLError:  # either of the two; what is wrong with it stands where it was read itself
                continue
            if status == pynvml.NVML_P2P_STATUS_OK:
                peers.append(gpu.uuid)
    return tuple(sorted(peers))


def _read_mig(
    parent: object, ask_gpu: _Asker, node: int, minors: dict[tuple[int, ...], int], proc: Path
) -> tuple[tuple[MIGInstance, ...], list[dict[str, Any]]]:
    """List the instances of a GPU in MIG mode; the places between them may be empty."""
    found, readings = [], []
    for place in range(ask_gpu(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent, default=0)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, place)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
            compute_instance = pynvml.nvmlDeviceGetComputeInstanceId(handle)
        except pynvml.NVMLError:
            continue
        total, used = _memory(ask_gpu, handle)
        name = _MIG_NAME.search(ask_gpu(pynvml.nvmlDeviceGetName, handle, default=""))
        caps = (minors.get((node, gpu_instance)), minors.get((node, gpu_instance, compute_instance)))
        found.append(
            MIGInstance(
                uuid=uuid,
                profile=name[1] if name else "",
                memory_bytes=total,
                devices=tuple(f"nvidia-caps/nvidia-cap{cap}" for cap in caps if cap is not None),
            )
        )
        processes = _processes(ask_gpu, handle, proc)
        readings.append({"uuid": uuid, "memory_used_bytes": used, "processes": processes})
    return tuple(found), readings


def _read_minors(path: Path) -> dict[tuple[int, ...], int]:
    """Device minors of MIG capabilities by (gpu, instance) and (gpu, instance, compute instance); NVML has no call."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return {
        tuple(int(part) for part in match.groups()[:3] if part is not None): int(match[4])
        for match in _MIG_MINOR.finditer(text)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the inventory as JSON; status 1 and one line where the library fails."""
    parser = argparse.ArgumentParser(prog="python -m spawner.nvml", description="Print this machine's GPUs as JSON.")
    parser.add_argument("--library", type=Path, help="the libnvidia-ml.so.1 to ask, instead of the installed one")
    parser.add_argument("--device-dir", type=Path, default=_DEV, help="the folder of the device nodes")
    parser.add_argument("--proc", type=Path, default=_PROC, help="where the processes are")
    arguments = parser.parse_args(argv)
    try:
        answer = read_library(library=arguments.library, device_dir=arguments.device_dir, proc=arguments.proc)
    except (OSError, pynvml.NVMLError) as error:
        sys.stderr.write(f"NVML cannot be asked: {error}\n")
        return 1
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
