"""What a GPU was doing when somebody looked: live values, which placement does not need and which are soon old.

What a driver does not tell is None, never 0: "no process" and "no answer" are two things.
"""

import re
from dataclasses import dataclass
from datetime import datetime

__all__ = ["GPUProcess", "Reading", "container_of"]

# Docker writes the id as a folder of its own (cgroupfs) or as docker-<id>.scope (systemd); other engines as
# libpod-<id>.scope or cri-containerd-<id>.scope. A container may have folders of its own below.
_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?=\.scope|/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUProcess:
    """A compute process on a GPU. `container` is the id of the container that it runs in, empty for none."""

    pid: int
    memory_bytes: int | None = None
    container: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a GPU or a MIG instance.

    Attributes
    ----------
    uuid
        Whose reading it is.
    at
        When the driver was asked; the values are from this moment or later.
    memory_used_bytes
        What programs have allocated, without what the driver keeps for itself.
    processes
        The compute processes. Those of a split GPU itself may repeat the ones of its instances.
    """

    uuid: str
    at: datetime
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    use_percent: int | None = None
    processes: tuple[GPUProcess, ...] | None = None


def container_of(cgroup: str) -> str:
    """Find the container's id in the text of /proc/<pid>/cgroup, of cgroup v1 or v2; empty where there is none.

    Of nested ones it is the innermost: the outer one is the container that the engine itself runs in.
    """
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        if found := _CONTAINER.findall(path):
            return str(found[-1])
    return ""
