"""The GPUs of this machine, as NVIDIA's management library tells of them; the only importer of pynvml.

`python -m spawner.nvml` asks the library and prints what it found as JSON. The hub calls `read_inventory`, which runs
just that in a process of its own: a driver in trouble holds whoever asks it, and must never hold the hub.

What must hold: one bad GPU does not hide the others; a GPU that was known and answers no more stays in the list as
unhealthy, so that its lease is not given away; "there is no driver" is an answer, and "nobody answered" is a failure.
"""

import argparse
import asyncio
import ctypes
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from spawner.core.model import GPU, MIGInstance, Node

if TYPE_CHECKING:
    from spawner.settings import GPUSettings  # pydantic would double the time that the child takes to start

__all__ = ["Inventory", "InventoryFailure", "ask", "read_inventory", "read_library"]

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")

_ROOT = Path(__file__).resolve().parent.parent  # where `-m spawner.nvml` is found, installed or not
MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
_MIG_MINOR = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")
_MIG_NAME = re.compile(r"MIG (\S+)$")
_NO_DRIVER = {pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}
_DEAD = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN}

_stuck: list[asyncio.subprocess.Process] = []  # children that did not end in time; while one lives, no other is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What there is, and in words why there are no GPUs, where there are none."""

    node: Node
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryFailure:
    """Nobody knows what GPUs there are: no answer in time, or a library that fails. `reason` is for the operator."""

    reason: str


async def read_inventory(
    settings: "GPUSettings", node_name: str, *, known: Node | None = None, timeout_s: float = 10
) -> Node | InventoryFailure:
    """Give this machine with its GPUs; why it has none stands in the log. See `ask`."""
    answer = await ask(settings, node_name, known=known, timeout_s=timeout_s)
    if isinstance(answer, InventoryFailure):
        return answer
    if answer.reason:
        LOGGER.warning("no GPUs: %s node=%s", answer.reason, node_name)
    return answer.node


async def ask(
    settings: "GPUSettings", node_name: str, *, known: Node | None = None, timeout_s: float = 10
) -> Inventory | InventoryFailure:
    """Ask for the GPUs of this machine, in a process of its own.

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

    """
    node = Node(
        name=node_name,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpus=float(os.cpu_count() or 1),
        simulated=settings.simulated,
    )
    if settings.inventory == "none":
        return Inventory(node=node, reason='the settings say gpus.inventory = "none"')
    command = [sys.executable, "-m", "spawner.nvml", "--device-dir", str(settings.device_dir)]
    if settings.library is not None:
        command += ["--library", str(settings.library)]
    answer = await _run(command, timeout_s)
    if isinstance(answer, InventoryFailure):
        return answer
    found = {gpu.uuid: gpu for gpu in map(_gpu, answer["gpus"])}
    kept = {gpu.uuid: _gone(gpu, answer["lost"]) for gpu in known.gpus} if known is not None else {}
    gpus = tuple(sorted((kept | found).values(), key=lambda gpu: (gpu.index, gpu.uuid)))
    reason = "" if gpus else answer["reason"] or "the driver lists no GPU"
    return Inventory(node=replace(node, gpus=gpus, driver=answer["driver"]), reason=reason)


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
    return GPU(**{**answer, "mig": mig, "devices": tuple(answer["devices"])})


def _gone(gpu: GPU, lost: dict[str, str]) -> GPU:
    return replace(gpu, unhealthy=lost.get(str(gpu.index), "no longer listed by the driver"))


def read_library(*, library: Path | None, device_dir: Path, mig_minors: Path = MIG_MINORS) -> dict[str, Any]:
    """Ask the library for all GPUs; what `python -m spawner.nvml` prints.

    `lost` has the index and the error of GPUs that did not even say their UUID; `reason` is filled where there is no
    driver. Raises OSError where the library named cannot be loaded, NVMLError where the library fails as a whole.
    """
    if library is not None:
        # pynvml opens the library by its soname; what is loaded with that soname before is what it gets
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value not in _NO_DRIVER:
            raise
        return {"driver": "", "reason": f"there is no NVIDIA driver here ({error})", "gpus": [], "lost": {}}
    try:
        minors = _read_minors(mig_minors)
        gpus, lost = [], {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpus.append(asdict(_read_gpu(index, device_dir, minors)))
            except pynvml.NVMLError as error:
                lost[str(index)] = str(error)
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "reason": "", "gpus": gpus, "lost": lost}
    finally:
        pynvml.nvmlShutdown()


class _Asker:
    """Asks one GPU; what it does not support is a default, and the first sign of its death is kept."""

    def __init__(self) -> None:
        self.unhealthy = ""

    def __call__(self, question: Callable[..., Any], *args: object, default: T) -> T:
        try:
            answer: T = question(*args)
        except pynvml.NVMLError as error:
            if error.value in _DEAD:
                self.unhealthy = self.unhealthy or str(error)
            return default
        return answer


def _read_gpu(index: int, device_dir: Path, minors: dict[tuple[int, ...], int]) -> GPU:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    ask_gpu = _Asker()
    memory = ask_gpu(pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
    major, minor = ask_gpu(pynvml.nvmlDeviceGetCudaComputeCapability, handle, default=(0, 0))
    node = ask_gpu(pynvml.nvmlDeviceGetMinorNumber, handle, default=-1)
    mig_enabled = bool(ask_gpu(pynvml.nvmlDeviceGetMigMode, handle, default=[0, 0])[0])
    mig = _read_mig(handle, ask_gpu, node, minors) if mig_enabled else ()
    name = ask_gpu(pynvml.nvmlDeviceGetName, handle, default="NVIDIA GPU")
    path = device_dir / f"nvidia{node}"
    unhealthy = ask_gpu.unhealthy
    if not unhealthy and not major:
        unhealthy = "its compute capability cannot be read"
    if not unhealthy and not path.exists():
        unhealthy = f"{path} is missing"
    return GPU(
        uuid=uuid,
        index=index,
        name=name,
        memory_bytes=int(memory.total) if memory is not None else 0,
        compute_capability=major * 10 + minor,
        unhealthy=unhealthy,
        mig_enabled=mig_enabled,
        mig=mig,
        devices=(f"nvidia{node}",) if node >= 0 else (),
    )


def _read_mig(
    parent: object, ask_gpu: _Asker, node: int, minors: dict[tuple[int, ...], int]
) -> tuple[MIGInstance, ...]:
    """List the instances of a GPU in MIG mode; the places between them may be empty."""
    found = []
    for place in range(ask_gpu(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent, default=0)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, place)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
            compute_instance = pynvml.nvmlDeviceGetComputeInstanceId(handle)
        except pynvml.NVMLError:
            continue
        memory = ask_gpu(pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
        name = _MIG_NAME.search(ask_gpu(pynvml.nvmlDeviceGetName, handle, default=""))
        caps = (minors.get((node, gpu_instance)), minors.get((node, gpu_instance, compute_instance)))
        found.append(
            MIGInstance(
                uuid=uuid,
                profile=name[1] if name else "",
                memory_bytes=int(memory.total) if memory is not None else 0,
                devices=tuple(f"nvidia-caps/nvidia-cap{cap}" for cap in caps if cap is not None),
            )
        )
    return tuple(found)


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
    parser.add_argument("--device-dir", type=Path, default=Path("/dev"), help="the folder of the device nodes")
    arguments = parser.parse_args(argv)
    try:
        answer = read_library(library=arguments.library, device_dir=arguments.device_dir)
    except (OSError, pynvml.NVMLError) as error:
        sys.stderr.write(f"NVML cannot be asked: {error}\n")
        return 1
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
