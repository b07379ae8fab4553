"""Runs inside a throw-away container and prints what its limits really are, as JSON. Only the standard library.

Cgroup v2 shows a container its own files at the root of the mount, and so does v1 in each controller's folder.
"""

import json
import os
import resource
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
V1 = {
    "memory": "memory/memory.limit_in_bytes",
    "memory and swap": "memory/memory.memsw.limit_in_bytes",
    "pids": "pids/pids.max",
    "cpu quota": "cpu/cpu.cfs_quota_us",
    "cpu period": "cpu/cpu.cfs_period_us",
}


def read(name: str) -> str | None:
    """The text of a cgroup file; None where the kernel has none."""
    try:
        return (CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def cgroups() -> dict[str, str | None]:
    """The limits by name, whatever the version."""
    if not (CGROUP / "cgroup.controllers").exists():
        return {"version": "1", **{name: read(path) for name, path in V1.items()}}
    quota, _, period = (read("cpu.max") or "").partition(" ")
    return {
        "version": "2",
        "memory": read("memory.max"),
        "swap": read("memory.swap.max"),
        "pids": read("pids.max"),
        "cpu quota": quota or None,
        "cpu period": period or None,
    }


def size(path: str) -> int:
    """The size of the file system that is mounted there; 0 where none of its own is."""
    if os.stat(path).st_dev == os.stat("/").st_dev:  # noqa: PTH116
        return 0
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def status() -> dict[str, str]:
    """What the kernel says of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def writable() -> bool:
    """Whether the root file system takes files."""
    return not os.statvfs("/").f_flag & os.ST_RDONLY


if __name__ == "__main__":
    me = status()
    print(
        json.dumps(
            {
                **cgroups(),
                "shm": size("/dev/shm"),  # noqa: S108
                "tmp": size("/tmp"),  # noqa: S108
                "open files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
                "core files": resource.getrlimit(resource.RLIMIT_CORE)[1],
                "capabilities": me["CapEff"],
                "no new privileges": me["NoNewPrivs"],
                "seccomp": me.get("Seccomp", "0"),
                "user": os.getuid(),
                "root writable": writable(),
            }
        )
    )
