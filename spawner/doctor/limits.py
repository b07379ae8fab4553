"""Whether the limits that servers get really hold: read inside a throw-away container that is made as a server is."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from spawner import container, throwaway
from spawner.core.limits import MIN_MEMORY_BYTES
from spawner.core.model import Limits, Person
from spawner.docker_api import EngineRefuses, EngineSaysGone, once, remove_once
from spawner.doctor.engine import needed_by, read_catalog
from spawner.doctor.machine import Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding
from spawner.injection import Injected
from spawner.settings import ContainerSettings

__all__ = ["check_limits", "judge", "measure", "numbers"]

KIND = "doctor"
CPUS = 0.5
ENDS_S = 20
_CHILD = Path(__file__).with_name("_limits_child.py")
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2^63
_CONTROLLER = "enable the {} cgroup controller (on Debian: cgroup_enable={} on the kernel's command line), then reboot"
_SWAP = 'GRUB_CMDLINE_LINUX="swapaccount=1" in /etc/default/grub, then update-grub and reboot; or swapoff -a'
_UPGRADE = "apt-get install --only-upgrade docker.io runc && systemctl restart docker"


def numbers(settings: ContainerSettings) -> Limits:
    """The limits that the container is made with: the settings' own, with little memory and half a processor."""
    return Limits(
        memory_bytes=MIN_MEMORY_BYTES,
        cpus=CPUS,
        pids=settings.pids,
        shm_bytes=min(settings.shm, MIN_MEMORY_BYTES),
        tmp_bytes=min(settings.tmp, MIN_MEMORY_BYTES),
        tmp_inodes=settings.tmp_inodes,
        nofile=settings.nofile,
    )


def check_limits(machine: Machine) -> Iterator[Finding]:
    """Say of each limit whether the kernel keeps it."""
    facts = needed_by(machine)
    references = [variant.image for variant in read_catalog(machine).variants]
    uid, asked = machine.set.homes.uid_max, numbers(machine.set.containers)
    try:
        with once("images") as client:
            image = throwaway.first_built(client, references)
    except EngineSaysGone as error:
        raise NotLookedAtError(f"{error} (make images)") from error
    seen = measure(image, asked, hub=machine.set.hub.name, uid=uid)
    yield from judge(seen, asked, uid=uid, swap_total=_swap(machine), cgroup_driver=facts.info.get("CgroupDriver", ""))


def measure(image: str, asked: Limits, *, hub: str, uid: int) -> dict[str, Any]:
    """Run the container and give what it read; EngineRefuses where it did not. Blocks."""
    labels = throwaway.labels(hub, KIND)
    person = Person(sub=KIND, uid=uid, hub_name=KIND, home=str(uid))
    parts = container.host_config(
        asked, person, home="/", identity=("/", "/"), injected=Injected(), with_gpus=False
    ) | {"mounts": []}
    with once("limits") as client:
        for left in throwaway.left_over(client, labels):
            remove_once(left["Id"])
        made = client.create_container(
            image,
            ["python3", "-I", "-S", "-c", _CHILD.read_text(encoding="utf-8")],
            entrypoint=[],
            user=f"{uid}:{uid}",
            working_dir="/",
            environment={"NVIDIA_VISIBLE_DEVICES": "void"},
            labels=labels,
            host_config=client.create_host_config(network_mode="none", **parts),
        )
        try:
            client.start(made["Id"])
            status = client.wait(made["Id"], timeout=ENDS_S)["StatusCode"]
            said = client.logs(made["Id"]).decode(errors="replace").strip()
        finally:
            with suppress(EngineRefuses):
                remove_once(made["Id"])
    if status != 0:
        raise EngineRefuses(f"the container for this check ended with {status}: {said[-300:]}")
    return dict(json.loads(said))


def judge(
    seen: Mapping[str, Any], asked: Limits, *, uid: int, swap_total: int, cgroup_driver: str
) -> Iterator[Finding]:
    """Compare what a container read with what it was made with."""
    text = f"version {seen['version']}, driver {cgroup_driver or 'unknown'}"
    yield ok("limit cgroups", text)
    yield _exact("memory", seen["memory"], asked.memory_bytes, _CONTROLLER.format("memory", "memory"))
    yield _swapping(seen, asked.memory_bytes, swap_total)
    yield _exact("pids", seen["pids"], asked.pids, _CONTROLLER.format("pids", "pids"))
    yield _processors(seen)
    yield _exact("shm", seen["shm"], asked.shm_bytes, _UPGRADE)
    yield _exact("tmp", seen["tmp"], asked.tmp_bytes, _UPGRADE)
    yield _files(int(seen["open files"]), asked.nofile)
    yield _exact("core files", seen["core files"], 0, _UPGRADE)
    yield _hardened(seen, uid)


def _exact(name: str, value: str | int | None, wanted: int, remedy: str) -> Finding:
    check = f"limit {name}"
    if value is None or not str(value).isdigit() or int(value) >= _UNLIMITED:
        return fail(check, f"a container that was made with {wanted} has no limit", remedy)
    if int(value) != wanted:
        return fail(check, f"a container that was made with {wanted} has {value}", remedy)
    return ok(check, f"{wanted} is kept")


def _swapping(seen: Mapping[str, Any], memory: int, swap_total: int) -> Finding:
    """No swap beside the memory: v2 counts swap alone, v1 memory and swap together."""
    check = "limit swap"
    if seen["version"] == "2":
        name, value, wanted = "memory.swap.max", seen["swap"], 0
    else:
        name, value, wanted = "memory.memsw.limit_in_bytes", seen["memory and swap"], memory
    if value == str(wanted):
        return ok(check, f"{name} is {wanted}: no swap beside the memory")
    if swap_total == 0:
        return ok(check, "the kernel does not count swap, and this machine has none")
    text = f"{name} is {value or 'missing'} instead of {wanted}, so servers swap beside their memory"
    return warn(check, text, _SWAP)


def _processors(seen: Mapping[str, Any]) -> Finding:
    check, quota, period = "limit processors", seen["cpu quota"], seen["cpu period"]
    if quota and period and quota.isdigit() and int(quota) == int(CPUS * int(period)):
        return ok(check, f"{CPUS:g} of a processor is kept")
    text = f"a container that was made with {CPUS:g} has the quota {quota or 'none'} of {period or 'none'}"
    return fail(check, text, _CONTROLLER.format("cpu", "cpu"))


def _files(value: int, wanted: int) -> Finding:
    check = "limit open files"
    if value == wanted:
        return ok(check, f"{wanted} is kept")
    if 0 < value < wanted:
        text = f"{value} instead of containers.nofile = {wanted}, since the hub or the engine may not raise it"
        return warn(check, text, "LimitNOFILE=infinity in the systemd units of docker and hub, then restart both")
    return fail(check, f"a container that was made with {wanted} has {value}", _UPGRADE)


def _hardened(seen: Mapping[str, Any], uid: int) -> Finding:
    wrong = [
        text
        for text, bad in (
            (f"it runs as {seen['user']}", seen["user"] != uid),
            ("it has capabilities", int(seen["capabilities"], 16) != 0),
            ("it may gain privileges", seen["no new privileges"] != "1"),
            ("it has no seccomp filter", seen["seccomp"] != "2"),
            ("its root can be written", seen["root writable"]),
        )
        if bad
    ]
    check = "limit rights"
    if wrong:
        return fail(check, f"a container made as a server: {', '.join(wrong)}", _UPGRADE)
    return ok(check, "no root, no capabilities, no new privileges, seccomp, read-only root")


def _swap(machine: Machine) -> int:
    """Swap of this machine in KiB; 1 where nobody can tell, which is the careful answer."""
    for line in machine.read("/proc/meminfo").splitlines():
        if line.startswith("SwapTotal:"):
            return int(line.split()[1])
    return 1
