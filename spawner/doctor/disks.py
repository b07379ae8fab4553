"""Homes and disks: what the homes root is, whether users can write there, and how full the disks are."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from spawner.core.disks import FULL_PERCENT, WARN_PERCENT, Disk
from spawner.core.model import Person, Refusal
from spawner.disk import CONTAINERS, Look, Places, in_containers, writers_of
from spawner.docker_api import once
from spawner.doctor.machine import Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding
from spawner.messages import sentence
from spawner.records import TROUBLE, Records, RecordsError
from spawner.storage import Homes, Storage

__all__ = ["Mount", "check_disks", "homes", "judge_disk", "judge_homes", "judge_mount", "mount_of"]

_LOST_AT_BOOT = ("tmpfs", "ramfs", "overlay")
_NAS = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "fuse.glusterfs")
_WRITERS_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system, as the kernel lists it."""

    place: str
    kind: str
    source: str
    options: frozenset[str]


def mount_of(mountinfo: str, path: Path) -> Mount | None:
    """Find the mount that a path is on; the last of several at one place is the one that is seen."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, tail = fields.split(), rest.split()
        if len(parts) < 6 or len(tail) < 2:
            continue
        place = parts[4].encode().decode("unicode_escape")  # a space is \040 there
        if Path(place) != path and Path(place) not in path.parents:
            continue
        if best is None or len(place) >= len(best.place):
            options = frozenset(parts[5].split(","))
            best = Mount(place=place, kind=tail[0], source=tail[1], options=options)
    return best


# -- homes ----------------------------------------------------------------------------------------------------------


def homes(machine: Machine) -> Iterator[Finding]:
    """Say what the homes root is, whose homes are in it, and whether a user can write there."""
    root = machine.set.homes.root
    yield from judge_mount(mount_of(machine.read("/proc/self/mountinfo"), root), root)
    key = _key(machine.set.state / "secrets" / "marker_key")
    storage = Storage(root, key or bytes(16))
    if key is None:
        remedy = "start the hub once, or restore secrets/ of the state folder from its backup"
        yield warn("homes owners", "the key that proves whose home is whose is not there (secrets/marker_key)", remedy)
    else:
        yield judge_homes(asyncio.run(storage.survey()), _persons(machine.set.state / "records.sqlite"), root)
    yield _attempt(storage, machine.set.homes.uid_max, root)


def judge_mount(mount: Mount | None, root: Path) -> Iterator[Finding]:
    """Say what file system homes are on, and whether it lets users make programs or devices of others."""
    check, options = "homes mount", "homes options"
    if mount is None:
        yield warn(check, f"which file system {root} is on cannot be told", "findmnt --target " + str(root))
        return
    said = f"{root} is on {mount.source} ({mount.kind}) at {mount.place}"
    if mount.kind in _LOST_AT_BOOT:
        yield warn(
            check, f"{said}: what is written there is lost with the machine", "set homes.root to a disk or a NAS"
        )
    elif "ro" in mount.options:
        yield fail(check, f"{said}, read-only", f"mount -o remount,rw {mount.place}; dmesg says why it is so")
    else:
        yield ok(check, said)
    lacking = [name for name in ("nosuid", "nodev") if name not in mount.options]
    if not lacking:
        yield ok(options, "nosuid and nodev")
    elif mount.place == "/":
        text = (
            "homes are on the system's own disk: users can fill it, and a program made setuid there works on the host"
        )
        yield warn(options, text, f"put {root} on a file system of its own, mounted with nosuid,nodev")
    else:
        text = f"mounted without {' and '.join(lacking)}: a program made setuid in a home works on the host"
        remedy = f"mount -o remount,nosuid,nodev {mount.place} (and the same in /etc/fstab)"
        yield warn(options, text, remedy)


def judge_homes(found: Homes | Refusal, persons: Iterable[Person], root: Path) -> Finding:
    """Compare the homes that carry our marker with the persons on record: none of them there means no NAS there."""
    check, known = "homes owners", {person.uid for person in persons}
    if isinstance(found, Refusal):
        return fail(check, sentence(found), f"findmnt --target {root}; ls {root}")
    proved = {person.uid for person in found.persons}
    if known and not known & found.uids:
        text = f"{len(known)} persons are on record and none of their homes is in {root}: is the NAS mounted?"
        return fail(check, text, f"mount {root}, before anybody starts a server with an empty home")
    if unproved := sorted(known & found.uids - proved):
        shown = ", ".join(map(str, unproved[:5]))
        text = f"{len(unproved)} homes of persons on record carry no marker of this hub ({shown})"
        return warn(check, text, "a start of their owner writes it; restore secrets/marker_key if all homes are so")
    return ok(check, f"{len(proved)} homes carry the marker of this hub, {len(known)} persons are on record")


def _attempt(storage: Storage, uid: int, root: Path) -> Finding:
    check, answer = "homes writing", asyncio.run(storage.attempt(uid))
    if isinstance(answer, Refusal):
        return fail(
            check,
            f"user {uid} cannot write below {root}: {sentence(answer)}",
            f"ls -ld {root}; findmnt --target {root}",
        )
    who = "root makes homes for their users" if answer == "root" else "users make their own homes"
    return ok(check, f"written and removed as user {uid}; {who}")


def _key(path: Path) -> bytes | None:
    try:
        return bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _persons(path: Path) -> tuple[Person, ...]:
    """The persons on record; none where there are no records, which a look must not make."""
    if not path.exists():
        return ()
    try:
        with closing(Records.open(f"sqlite:///{path}")) as opened:
            return opened.persons()
    except (RecordsError, *TROUBLE) as error:  # type: ignore[misc]  # a tuple of exception classes
        raise NotLookedAtError(f"the records cannot be used ({str(error).splitlines()[0]})") from error


# -- disks ----------------------------------------------------------------------------------------------------------


def check_disks(machine: Machine) -> Iterator[Finding]:
    """Say how full the disks of state, homes and containers are; where one is, also who fills it."""
    places = Places(machine.set.state, machine.set.homes.root)
    try:
        places.paths[CONTAINERS] = Path(machine.engine.get().info["DockerRootDir"])
    except NotLookedAtError as error:
        yield warn("disk containers", f"not looked at, since {error}", "gpucampus doctor, once that is mended")
    yield from asyncio.run(_disks(places))


async def _disks(places: Places) -> list[Finding]:
    look: Look = await places.look()
    found = [
        warn(
            f"disk {name}",
            f"{places.paths[name]} cannot be looked at: {why}",
            f"df {places.paths[name]}; ls {places.paths[name]}",
        )
        for name, why in look.unknown.items()
    ]

    async def containers() -> str:
        return await asyncio.to_thread(_sizes)

    for disk in look.disks:
        writers = ""
        if disk.percent >= WARN_PERCENT:
            try:
                async with asyncio.timeout(_WRITERS_S):
                    writers = await writers_of(places, disk, containers)
            except TimeoutError:
                writers = ""
        found.append(judge_disk(disk, writers))
    return found


def judge_disk(disk: Disk, writers: str) -> Finding:
    """Say how full a disk is, and who has written most of it."""
    check, text = f"disk {' '.join(disk.names)}", f"{disk.path} is {disk.percent} % full"
    if disk.percent < WARN_PERCENT:
        return ok(check, text)
    by = f"; most is taken by {writers}" if writers else ""
    remedy = (
        "docker system df, docker image prune"
        if CONTAINERS in disk.names
        else f"du -xh --max-depth=1 {disk.path} | sort -h"
    )
    if disk.percent >= FULL_PERCENT:
        return fail(check, f"{text}, so no new server is started{by}", remedy)
    return warn(check, f"{text}, and at {FULL_PERCENT} % no new server is started{by}", remedy)


def _sizes() -> str:
    with once("sizes") as client:
        return in_containers(client.containers(all=True, size=True))
