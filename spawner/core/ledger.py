"""Leases as container labels: the engine is the record, everything else is a cache of it.

Invariants:
- `from_labels(to_labels(lease))` is the lease.
- `rebuild` loses nothing: each container that says it is ours ends as a lease or as an orphan, and the GPUs of both
  stay withheld. Two containers that name one GPU are both kept and reported.
- Labels that cannot be read, or that a newer version wrote, are never believed and never freed: they are orphans.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from spawner.core.model import Lease, Mode

__all__ = ["LABEL", "SCHEMA", "Conflict", "Container", "Ledger", "Orphan", "from_labels", "rebuild", "to_labels"]

LABEL = "gpucampus."
SCHEMA = 1
_FIELDS = (
    "lease",
    "hub",
    "kind",
    "user",
    "server",
    "variant",
    "image",
    "gpus",
    "mode",
    "memory",
    "cpus",
    "granted",
    "expires",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container as the engine tells of it. `state` is the engine's word: created, running, exited, dead ..."""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A container with our labels that cannot be read as a lease; `gpus` are the UUIDs that it names all the same."""

    container: str
    name: str
    why: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One GPU that more than one exclusive lease names."""

    gpu: str
    leases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Who holds what, in lease id order."""

    leases: tuple[Lease, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    conflicts: tuple[Conflict, ...] = ()

    @property
    def withheld(self) -> frozenset[str]:
        """UUIDs that nobody can be given although no readable lease holds them."""
        return frozenset(gpu for orphan in self.orphans for gpu in orphan.gpus)


def to_labels(lease: Lease) -> dict[str, str]:
    """Write a lease as labels. Every label is always written, so that none of an image's own survives."""
    values = {
        "schema": str(SCHEMA),
        "lease": lease.id,
        "hub": lease.hub,
        "kind": lease.kind,
        "user": lease.user,
        "server": lease.server,
        "variant": lease.variant,
        "image": lease.image,
        "gpus": ",".join(lease.gpus),
        "mode": lease.mode.value,
        "memory": str(lease.memory_bytes),
        "cpus": repr(lease.cpus),
        "granted": _stamp(lease.granted),
        "expires": _stamp(lease.expires),
    }
    return {LABEL + key: value for key, value in values.items()}


def from_labels(labels: Mapping[str, str]) -> Lease:
    """Read a lease from labels; ValueError says in words what is wrong with them."""
    schema = labels.get(LABEL + "schema", "")
    if schema != str(SCHEMA):
        raise ValueError(f"schema {schema!r} is not {SCHEMA}")
    missing = [key for key in _FIELDS if LABEL + key not in labels]
    if missing:
        raise ValueError(f"label {LABEL}{missing[0]} is missing")
    value = {key: labels[LABEL + key] for key in _FIELDS}
    if not value["lease"]:
        raise ValueError(f"label {LABEL}lease is empty")
    return Lease(
        id=value["lease"],
        hub=value["hub"],
        kind=value["kind"],
        user=value["user"],
        server=value["server"],
        variant=value["variant"],
        image=value["image"],
        gpus=_uuids(value["gpus"]),
        mode=Mode(value["mode"]),
        memory_bytes=int(value["memory"]),
        cpus=float(value["cpus"]),
        granted=_time(value["granted"]),
        expires=_time(value["expires"]),
    )


def rebuild(containers: Iterable[Container]) -> Ledger:
    """Make the ledger from what the engine lists; the order of the containers does not matter."""
    leases: dict[str, Lease] = {}
    orphans: list[Orphan] = []
    for container in sorted(containers, key=lambda c: c.id):
        if LABEL + "lease" not in container.labels:
            continue
        try:
            lease = from_labels(container.labels)
            if lease.id in leases:
                raise ValueError(f"lease {lease.id} is named by two containers")
        except ValueError as error:
            gpus = _uuids(container.labels.get(LABEL + "gpus", ""))
            orphans.append(Orphan(container=container.id, name=container.name, why=str(error), gpus=gpus))
        else:
            leases[lease.id] = lease
    ordered = tuple(leases[key] for key in sorted(leases))
    return Ledger(leases=ordered, orphans=tuple(orphans), conflicts=_conflicts(ordered))


def _conflicts(leases: Iterable[Lease]) -> tuple[Conflict, ...]:
    holders: dict[str, list[str]] = {}
    for lease in leases:
        if lease.mode is not Mode.SHARED:
            for gpu in lease.gpus:
                holders.setdefault(gpu, []).append(lease.id)
    return tuple(Conflict(gpu=gpu, leases=tuple(ids)) for gpu, ids in sorted(holders.items()) if len(ids) > 1)


def _uuids(text: str) -> tuple[str, ...]:
    return tuple(sorted({part.strip() for part in text.split(",")} - {""}))


def _stamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the microsecond, so that writing and reading loses nothing."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone")
    return moment.astimezone(UTC)
