"""What `make run` looks at before it changes anything: each reason not to begin, by name and with its remedy.

    python3 -m deploy.preflight [--fetch]     prints what is not well; 1 where something forbids to go on

Only the standard library is used: this runs before any package is installed. What the engine says is judged here, too,
but asked for in engine.py.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deploy import listeners, sources
from spawner.core.engine_kinds import EngineKind, kind_of
from spawner.findings import Finding, Status

__all__ = [
    "GIB",
    "belongs",
    "bridge",
    "claim",
    "disk",
    "distribution",
    "engine",
    "folder",
    "free_bytes",
    "main",
    "ports",
    "python",
    "tell",
]

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
NEEDS, NEEDS_PLAIN = 8 * GIB, 3 * GIB
OLDEST_PYTHON = (3, 11)
SUPPORTED = {"debian": ("12", "13"), "ubuntu": ("24.04",)}
_BELONGS = "belongs-to.json"
_CANNOT_SERVE = {  # the remedy, and why
    EngineKind.PODMAN: (
        "stop it (`systemctl disable --now podman.socket`) and unset DOCKER_HOST; make run then brings Docker",
        "Podman answers at Docker's socket: it keeps no leases as we need them and writes no rules of ours",
    ),
    EngineKind.ROOTLESS: (
        "unset DOCKER_HOST and use the system's Docker (`apt-get install docker.io`)",
        "this Docker runs rootless: it can neither limit memory for all nor mount homes as their users",
    ),
    EngineKind.USERNS: (
        'take "userns-remap" out of /etc/docker/daemon.json and restart Docker',
        "this Docker maps user ids (userns-remap): homes would belong to nobody in containers",
    ),
    EngineKind.SNAP: (
        "`snap remove docker`; make run then brings Debian's or Ubuntu's own",
        "this Docker is a snap: it sees neither homes outside /home nor device nodes and hooks of the host",
    ),
}


def distribution(os_release: str) -> Finding:
    """Judge /etc/os-release: Debian 12 and 13 and Ubuntu 24.04 are supported, what derives from them may work."""
    values = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    name = values.get("PRETTY_NAME", "an unknown system").strip('"')
    kind, version = values.get("ID", "").strip('"'), values.get("VERSION_ID", "").strip('"')
    supported = SUPPORTED.get(kind)
    remedy = "use Debian 12, Debian 13 or Ubuntu 24.04"
    if supported is None:
        if {"debian", "ubuntu"}.isdisjoint(values.get("ID_LIKE", "").strip('"').split()):
            return Finding("distribution", Status.FAIL, f"{name} is neither Debian nor Ubuntu", remedy)
        return Finding("distribution", Status.WARN, f"{name} is untried; it goes on", f"if it fails, {remedy}")
    if version in supported:
        return Finding("distribution", Status.OK, name)
    if version and _number(version) < _number(supported[0]):
        return Finding("distribution", Status.FAIL, f"{name} is too old", remedy)
    return Finding("distribution", Status.WARN, f"{name} is untried; it goes on", f"if it fails, {remedy}")


def python(version: tuple[int, ...]) -> Finding:
    """Judge the version of Python."""
    text = ".".join(str(part) for part in version[:2])
    if version[:2] < OLDEST_PYTHON:
        return Finding("python", Status.FAIL, f"Python {text} is too old", "install Python 3.11 or newer as python3")
    return Finding("python", Status.OK, f"Python {text}")


def disk(free_bytes: int, place: Path) -> Finding:
    """Judge the room for a first run: 8 GiB for PyTorch, 3 GiB for the variant `plain`."""
    room = f"{free_bytes / GIB:.1f} GiB are free at {place}"
    if free_bytes >= NEEDS:
        return Finding("disk", Status.OK, room)
    if free_bytes >= NEEDS_PLAIN:
        return Finding(
            "disk",
            Status.WARN,
            f"{room}, and the image with PyTorch needs 8: the image `plain` takes its place",
            "free some room, or move the state folder by GPUCAMPUS_STATE, and run this again",
        )
    remedy = "free some room, or move the state folder by GPUCAMPUS_STATE"
    return Finding("disk", Status.FAIL, f"{room}, and the smallest demo needs 3", remedy)


def folder(state: Path) -> Finding:
    """Judge whether root may write in the state folder: it may not on a network file system that squashes it."""
    probe = state / ".probe"
    try:
        state.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        os.chown(probe, 65534, 65534)
        probe.unlink()
    except OSError as error:
        return Finding(
            "state folder",
            Status.FAIL,
            f"root cannot write and give files away in {state} ({error.strerror})",
            "put the checkout on a local disk, or name a folder there in GPUCAMPUS_STATE",
        )
    return Finding("state folder", Status.OK, str(state))


def engine(info: Mapping[str, Any], version: Mapping[str, Any]) -> Finding:
    """Judge what the engine says of itself: one that is not Docker, or not as root on this machine, cannot serve us."""
    remedy, why = _CANNOT_SERVE.get(kind_of(info, version), ("", ""))
    if not why and not info.get("MemoryLimit"):
        why = "the Docker Engine cannot limit memory here (no memory cgroup), so one person could take it all"
        remedy = "add cgroup_enable=memory to the kernel's command line and restart the machine"
    if why:
        return Finding("engine", Status.FAIL, why, remedy)
    return Finding("engine", Status.OK, f"Docker {info.get('ServerVersion', '')}")


def belongs(state: Path, checkout: Path, hub: str) -> Finding:
    """Judge whether the state folder is this hub's, and this checkout's."""
    try:
        owner = json.loads((state / _BELONGS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Finding("state", Status.OK, "nobody's yet")
    other, name = Path(owner["checkout"]), owner["hub"]
    forget = f"if that one is given up, remove {state / _BELONGS}"
    if other != checkout and (other / "deploy/run").exists():
        text = f"{state} belongs to the checkout in {other}"
        return Finding("state", Status.FAIL, text, f"name another folder in GPUCAMPUS_STATE; {forget}")
    if name != hub:
        text = f"{state} belongs to the hub {name}, and this one is {hub}"
        remedy = "name another folder in GPUCAMPUS_STATE, or unset GPUCAMPUS_PORT"
        return Finding("state", Status.FAIL, text, f"{remedy}; {forget}")
    return Finding("state", Status.OK, f"of {hub}")


def claim(state: Path, checkout: Path, hub: str) -> None:
    """Note whose the state folder is."""
    new = state / f"{_BELONGS}.new"
    new.write_text(json.dumps({"checkout": str(checkout), "hub": hub}), encoding="utf-8")
    new.replace(state / _BELONGS)


def bridge(network: str, hub: str, hubs: Iterable[str]) -> Finding:
    """Judge whose servers are on our network, by their labels."""
    others = sorted(set(hubs) - {hub})
    if others:
        text = f"servers of another hub ({', '.join(others)}) are on the network {network}"
        return Finding("network", Status.FAIL, text, "give each hub its own network.name, bridge and subnet")
    return Finding("network", Status.OK, network)


def ports(wanted: Mapping[int, str], ours: Iterable[int], root: Path = Path("/")) -> list[Finding]:
    """Judge the ports that we will listen on; a program of ours that has one already is welcome.

    Parameters
    ----------
    wanted
        What needs each port, by its number.
    ours
        The processes of earlier runs of this hub.
    root
        Stands in for the machine's files.
    """
    mine, found = set(ours), []
    for number, what in wanted.items():
        holders = [holder for holder in listeners.holders(number, root) if holder.pid not in mine]
        if holders:
            names = ", ".join(str(holder) for holder in holders)
            text = f"port {number} ({what}) is taken by {names}"
            remedy = "end that program, or move all ports by GPUCAMPUS_PORT, such as GPUCAMPUS_PORT=9000"
            found.append(Finding("port", Status.FAIL, text, remedy))
        else:
            found.append(Finding("port", Status.OK, f"{number} is free"))
    return found


def tell(findings: Iterable[Finding]) -> str:
    """Say what is not well, one paragraph each; empty where all is."""
    words = {Status.WARN: "Note: ", Status.FAIL: ""}
    return "\n".join(
        f"{words[finding.status]}{finding.text[0].upper()}{finding.text[1:]}. To do: {finding.remedy}."
        for finding in findings
        if finding.status is not Status.OK
    )


def free_bytes(place: Path) -> int:
    """The room at a place, or where it will be made."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def main(arguments: list[str]) -> int:
    """Look, say what is not well, and answer whether to go on."""
    state = Path(os.environ.get("GPUCAMPUS_STATE") or ROOT / ".state").resolve()
    release = Path("/etc/os-release")
    found = [
        distribution(release.read_text(encoding="utf-8") if release.exists() else ""),
        python(tuple(sys.version_info[:2])),
        folder(state),
    ]
    if "--fetch" in arguments:
        room = disk(free_bytes(state), state)
        found += [room] if room.status is Status.FAIL else []  # the choice of the image is told when it is made
        found += sources.reach(sources.needed(state, os.environ))
    if text := tell(found):
        print(text, file=sys.stderr)
    return int(any(finding.status is Status.FAIL for finding in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
