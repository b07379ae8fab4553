"""Leases as container labels: the engine is the record, everything else is a cache of it.

Invariants:
- `from_labels(to_labels(lease))` is the lease.
- `rebuild` loses nothing: each container that says it is ours ends as a lease or as an orphan, and the GPUs of both
  stay withheld. Two containers that name one GPU are both kept and reported.
- Labels that cannot be read, or that a newer version wrote, are never believed and never freed: they are orphans.
- The labels `node` and `role` came later: they are always written, and containers without them are read all the same.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from spawner.core.model import Lease, Mode

__all__ = [
    "LABEL",
    "SCHEMA",
    "Conflict",
    "Container",
    "Ledger",
    "Orphan",
    "foreign_labels",
    "from_labels",
    "rebuild",
    "to_labels",
]

LABEL = "gpucampus."
SCHEMA = 1
T = TypeVar("T", int, float)
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

    @property
    def ended(self) -> bool:
        """Whether it ran and does so no more."""
        return self.state in ("exited", "dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A container with our labels that cannot be read as a lease.

    `gpus` are the UUIDs that it names all the same, and `node`, `memory_bytes` and `cpus` what it says to use of a
    machine, as far as that can be read: it runs, whoever wrote its labels.
    """

    container: str
    name: str
    why: str
    gpus: tuple[str, ...]
    node: str = ""
    memory_bytes: int = 0
    cpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """One GPU that more than one lease names, at least one of them not as a share."""

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
        "node": lease.node,
        "role": lease.role,
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
        memory_bytes=_memory(value["memory"]),
        cpus=_cpus(value["cpus"]),
        granted=_time(value["granted"]),
        expires=_time(value["expires"]),
        node=labels.get(LABEL + "node", ""),
        role=labels.get(LABEL + "role", ""),
    )


def foreign_labels(labels: Mapping[str, str], variant: str) -> tuple[str, ...]:
    """Name the labels of an image that only we may write on containers, but for those that our own build puts there."""
    built = {LABEL + "project": labels.get(LABEL + "project"), LABEL + "inputs": labels.get(LABEL + "inputs")}
    built[LABEL + "variant"] = variant
    return tuple(sorted(key for key, value in labels.items() if key.startswith(LABEL) and built.get(key) != value))


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
            orphans.append(_orphan(container, str(error)))
        else:
            leases[lease.id] = lease
    ordered = tuple(leases[key] for key in sorted(leases))
    return Ledger(leases=ordered, orphans=tuple(orphans), conflicts=_conflicts(ordered))


def _orphan(container: Container, why: str) -> Orphan:
    labels = container.labels
    return Orphan(
        container=container.id,
        name=container.name,
        why=why,
        gpus=_uuids(labels.get(LABEL + "gpus", "")),
        node=labels.get(LABEL + "node", ""),
        memory_bytes=_or_nothing(_memory, labels.get(LABEL + "memory", "")),
        cpus=_or_nothing(_cpus, labels.get(LABEL + "cpus", "")),
    )


def _conflicts(leases: Iterable[Lease]) -> tuple[Conflict, ...]:
    """Two shares of one GPU are no conflict; how many there may be is for policy.py to know."""
    holders: dict[str, list[Lease]] = {}
    for lease in leases:
        for gpu in lease.gpus:
            holders.setdefault(gpu, []).append(lease)
    return tuple(
        Conflict(gpu=gpu, leases=tuple(lease.id for lease in held))
        for gpu, held in sorted(holders.items())
        if len(held) > 1 and any(lease.mode is not Mode.SHARED for lease in held)
    )


def _memory(text: str) -> int:
    size = int(text)
    if size < 0:
        raise ValueError(f"memory {text!r} is negative")
    return size


def _cpus(text: str) -> float:
    """Neither nan nor inf: one such label would decide every comparison of a machine's sum."""
    cpus = float(text)
    if not math.isfinite(cpus) or cpus < 0:
        raise ValueError(f"cpus {text!r} is not a number of processors")
    return cpus


def _or_nothing(read: Callable[[str], T], text: str) -> T | int:
    try:
        return read(text)
    except ValueError:
        return 0


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
