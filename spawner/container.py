"""What every container must have: user, limits, mounts and environment, as create arguments.

Reasons are in docs/explanation/decisions.md (no root, nothing written outside home and tmpfs, no swap, no privileges).
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spawner.campus import BUNDLE, BUNDLE_INSIDE, Campus
from spawner.core.model import Limits, Person
from spawner.docker_api import bind_mount, ulimit
from spawner.injection import Injected

__all__ = ["HostConfigs", "certificates", "create_arguments", "environment", "home_inside", "host_config"]

OOM_SCORE = 500  # when the host runs out of memory, users' processes go before the hub's and the engine's
CPU_PERIOD_US = 100_000
_RUN_BYTES = 16 << 20
# The image's own check comes first; an image of the site's own may have none. `sh -c` reads no file of the home.
_HEALTH = "/usr/local/bin/gpucampus-health"
_CHECKED = f'if [ -x {_HEALTH} ]; then exec {_HEALTH} "$@"; fi; exec "$@"'
_LOG = {"type": "json-file", "config": {"max-size": "10m", "max-file": "3"}}


class HostConfigs:
    """Stands where the parent spawner expects its client, and builds host configs with ours laid over."""

    def __init__(self, build: Callable[[Mapping[str, Any]], Any]) -> None:
        self._build = build

    def create_host_config(self, **parts: Any) -> Any:
        """Build one from the parent's parts."""
        return self._build(parts)


def home_inside(person: Person) -> str:
    """The home's path inside the container."""
    return f"/home/{person.hub_name}"


def create_arguments(person: Person, *, name: str) -> dict[str, Any]:
    """Arguments of create beside the host config: who runs it, and where."""
    return {
        "name": name,
        "hostname": "gpucampus",
        "user": f"{person.uid}:{person.uid}",
        "working_dir": home_inside(person),
        "entrypoint": ["/bin/sh", "-c", _CHECKED, "sh"],
    }


def environment(person: Person, injected: Injected, gpus: Sequence[str]) -> dict[str, str | None]:
    """Environment that nobody else may set; None takes a variable of the image away."""
    return {
        "HOME": home_inside(person),
        "USER": person.hub_name,
        "LOGNAME": person.hub_name,
        # sockets and connection files of a network file system break kernels; /tmp is this container's own
        "JUPYTER_RUNTIME_DIR": "/tmp/jupyter-runtime",  # noqa: S108 - inside the container
        "GPUCAMPUS_GPUS": ",".join(gpus),  # what the image's check compares with; NVIDIA's own variable may be `void`
        **injected.environment,
    }


def certificates(campus: Campus, state: Path) -> list[Any]:
    """Mount the certificates that the campus trusts, where it has some of its own; the hub has written them."""
    if campus.ca_file is None:
        return []
    return [bind_mount(str(state / BUNDLE), BUNDLE_INSIDE, read_only=True)]


def host_config(
    limits: Limits, person: Person, *, home: str, identity: tuple[str, str], injected: Injected, with_gpus: bool
) -> dict[str, Any]:
    """Parts of the host config that hold for every server.

    Parameters
    ----------
    limits
        The numbers of this server.
    person
        Whose it is; the group list is numeric, since names of the group file alone are not taken.
    home
        The home's path on the host. A mount, not a bind: a missing home is an error instead of an empty folder.
    identity
        The passwd and group files on the host.
    injected
        The GPUs of the lease.
    with_gpus
        GPU drivers pin memory, so that such a server may lock it.
    """
    tmpfs_options = "mode=1777,nosuid,nodev"
    return {
        "auto_remove": False,  # the exit state is read first
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "cpu_period": CPU_PERIOD_US,
        "cpu_quota": int(limits.cpus * CPU_PERIOD_US),
        "pids_limit": limits.pids,
        "shm_size": limits.shm_bytes,
        "init": True,
        "cap_drop": ["ALL"],
        "cap_add": [],
        "privileged": False,
        "security_opt": ["no-new-privileges"],
        "oom_score_adj": OOM_SCORE,
        "read_only": True,
        "tmpfs": {
            # exec: torch.compile loads there what it has compiled; a home could run programs anyway
            "/tmp": f"exec,size={limits.tmp_bytes},nr_inodes={limits.tmp_inodes},{tmpfs_options}",  # noqa: S108 - inside
            "/run": f"size={_RUN_BYTES},nr_inodes=10000,{tmpfs_options}",
        },
        "ulimits": _ulimits(limits, with_gpus=with_gpus),
        "log_config": _LOG,
        "group_add": [str(person.uid)],
        "mounts": [
            bind_mount(home, home_inside(person)),
            bind_mount(identity[0], "/etc/passwd", read_only=True),
            bind_mount(identity[1], "/etc/group", read_only=True),
            *(bind_mount(m["source"], m["target"], read_only=m["read_only"]) for m in injected.mounts),
        ],
        "device_requests": [],
        "devices": [],
        **injected.host_config,
    }


def _ulimits(limits: Limits, *, with_gpus: bool) -> list[Any]:
    """No core files; open files and, for GPU drivers, locked memory as far as this machine lets the engine go."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    may_raise = _may_raise_limits()
    files = limits.nofile if may_raise or most_files == resource.RLIM_INFINITY else min(limits.nofile, most_files)
    found = [ulimit("core", 0, 0), ulimit("nofile", files, files)]
    if with_gpus and may_raise:
        found.append(ulimit("memlock", limits.memory_bytes, limits.memory_bytes))
    return found


def _may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, bit 24: without it the engine cannot raise memlock and start fails."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - the kernel's own file
        line = next(line for line in status if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> 24 & 1)
