"""The check at a container's start: are the leased GPUs there and no others, and is the image what it says it is?

    gpucampus-health COMMAND...    check, then become the server
    gpucampus-health               check and print the answer as JSON

It runs before anything of the home is read, imports no PyTorch and takes a fraction of a second. Where something is
wrong, nothing else is started: one line on stderr says what, and the exit status is STATUS. The hub reads both.

What it says is what this container sees. Whether a GPU is broken is decided by the hub, on the machine itself.
"""

import json
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from gpucampus_tools import nvml, variant

__all__ = ["GPUS", "MARK", "STATUS", "Finding", "check", "look_within", "main"]

STATUS = 90  # none of the shell's, of the engine's or of sysexits.h
MARK = "gpucampus-health: "
GPUS = "GPUCAMPUS_GPUS"  # UUIDs of the lease, by commas; empty for a server that holds none
_DEV = Path("/dev")
LIMIT_S = 20.0  # a driver without persistence mode may take seconds for its first answer
Finding = Mapping[str, str | int]


def main(argv: Sequence[str] | None = None) -> int:
    """Check, then become the command; the status says what was found where there is none."""
    command = list(sys.argv[1:] if argv is None else argv)
    began = time.monotonic()
    try:
        finding = check(os.environ.get(GPUS), variant.FILE)
    except Exception as error:  # noqa: BLE001 - whatever it is, no server is started on what could not be checked
        finding = {"code": "broken", "why": f"{type(error).__name__}: {error}"}
    if finding is not None:
        sys.stderr.write(f"{MARK}{json.dumps(finding)}\n")
        return STATUS
    if not command:
        sys.stdout.write(json.dumps({"healthy": True, "seconds": round(time.monotonic() - began, 3)}) + "\n")
        return 0
    return _become(command)


def check(
    leased: str | None, file: Path, *, ask: Callable[[], nvml.Seen | None] | None = None, dev: Path = _DEV
) -> Finding | None:
    """Find what is wrong, the image first; None where nothing is.

    Parameters
    ----------
    leased
        The UUIDs of the lease, by commas; None where nobody says, as in a container that was started by hand.
    file
        What the image says of itself.
    ask
        How to look at the GPUs.
    dev
        Where device nodes are.
    """
    try:
        said = variant.read(file)
    except variant.VariantError as error:
        return {"code": "broken", "why": str(error)}
    if finding := _versions(said):
        return finding
    # a CPU variant has no use for GPUs, whatever is there
    return _driver(said, leased, ask or look_within, dev) if said.min_driver else None


def _driver(
    said: variant.Variant, leased: str | None, ask: Callable[[], nvml.Seen | None], dev: Path
) -> Finding | None:
    try:
        seen = ask()
    except nvml.DriverError as error:
        return {"code": "driver-silent", "why": str(error)}
    if seen is None:
        return _without_driver(leased, dev)
    if nvml.older(seen.driver, said.min_driver):
        return {"code": "driver-old", "driver": seen.driver, "needed": said.min_driver}
    return None if leased is None else _gpus([uuid for uuid in leased.split(",") if uuid], seen)


def _versions(said: variant.Variant) -> Finding | None:
    """Compare with what is installed; what the variant does not name is not compared."""
    python = ".".join(platform.python_version_tuple()[: said.python.count(".") + 1])
    found = {
        "Python": (said.python, python),
        "PyTorch": (said.torch, variant.installed_torch() if said.torch else ""),
        "CUDA": (said.cuda, variant.installed_cuda() if said.cuda else ""),
    }
    for part, (expected, really) in found.items():
        if expected and expected != really:
            return {"code": "version", "part": part, "expected": expected, "found": really or "none"}
    return None


def _without_driver(leased: str | None, dev: Path) -> Finding | None:
    if leased:
        return {"code": "driver-silent", "why": f"neither the driver nor {nvml.LIBRARY} is in the container"}
    nodes = sorted(path.name for path in dev.glob("nvidia[0-9]*"))
    if nodes and leased is not None:
        return {"code": "gpu-extra", "others": len(nodes), "gpus": ", ".join(nodes)}
    return None


def _gpus(leased: Sequence[str], seen: nvml.Seen) -> Finding | None:
    missing = sorted(set(leased) - set(seen.uuids))
    others = sorted(set(seen.uuids) - set(leased))
    if missing:
        return {"code": "gpu-missing", "missing": len(missing), "leased": len(leased), "gpus": ", ".join(missing)}
    if others:
        return {"code": "gpu-extra", "others": len(others), "gpus": ", ".join(others)}
    return None


def look_within(limit_s: float = LIMIT_S, look: Callable[[], nvml.Seen | None] = nvml.look) -> nvml.Seen | None:
    """Ask in a process of its own: a driver in trouble holds whoever asks it, and cannot be killed there."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        _answer(theirs, look)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        ready, _, _ = select.select([answer], [], [], limit_s)
        if not ready:
            os.kill(child, signal.SIGKILL)  # and not waited for: inside the driver it does not die
            raise nvml.DriverError(f"no answer within {limit_s:g} s")
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        raise nvml.DriverError("NVIDIA's library ended the process that asked it")
    found = json.loads(text)
    if isinstance(found, str):
        raise nvml.DriverError(found)
    return None if found is None else nvml.Seen(**{**found, "uuids": tuple(found["uuids"])})


def _answer(pipe: int, look: Callable[[], nvml.Seen | None]) -> None:
    """In the child: one write, so that what can be read is whole; nothing of the parent's is flushed or run."""
    try:
        seen = look()
        answer: object = None if seen is None else asdict(seen)
    except Exception as error:  # noqa: BLE001 - the parent says it
        answer = str(error)
    os.write(pipe, json.dumps(answer).encode())
    os._exit(0)


def _become(command: list[str]) -> int:
    sys.stderr.flush()
    try:
        os.execvp(command[0], command)  # noqa: S606 - the point of it
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
