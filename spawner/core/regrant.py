"""When a GPU may be given away again, and which processes on the GPUs are nobody's.

What must hold: after a lease has ended, its GPUs are given out only on a reading that was begun later and shows no
process and no more memory in use than an idle GPU has; a GPU that nobody holds is never given out with more; a GPU with
a process of somebody else on it is not given out, even as a share. What the driver does not tell is not held against a
GPU, but a GPU of which it tells nothing is withheld.

A unit is what can be given away: a MIG instance of a split GPU, else the whole GPU. Simulated GPUs are no exception.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from spawner.core.ledger import LABEL, Container
from spawner.core.model import GPU, Node
from spawner.core.readings import GPUProcess, Reading

__all__ = ["foreign", "holders", "out_of_service", "quarantined", "said", "with_foreign", "with_missing", "withheld"]

Holders = Mapping[str, frozenset[str]]

MISSING = "not listed by the driver, and a server still holds it"
_PIDS_SAID = 5


def holders(containers: Iterable[Container]) -> dict[str, frozenset[str]]:
    """The UUIDs that each container names, by its id; those of orphans and of other hubs count as well."""
    return {
        container.id: frozenset(filter(None, map(str.strip, container.labels.get(LABEL + "gpus", "").split(","))))
        for container in containers
    }


def quarantined(
    node: Node,
    readings: Mapping[str, Reading],
    held: Collection[str],
    ended: Mapping[str, datetime],
    idle_memory_bytes: int,
) -> dict[str, str]:
    """Give the UUIDs that must not be given away although no lease says so, each with the reason.

    Parameters
    ----------
    node
        The GPUs; those that are unhealthy are left out, since nobody is given them anyway.
    readings
        The last reading of each GPU and each MIG instance.
    held
        UUIDs that leases, reservations and orphans name.
    ended
        When the last lease of a UUID ended, as far as it is known.
    idle_memory_bytes
        The most memory in use that an idle GPU may show.
    """
    found = {}
    for gpu in node.gpus:
        if gpu.unhealthy or (gpu.uuid in held and gpu.mig):
            continue
        for unit in _units(gpu):
            ends = [ended[uuid] for uuid in (gpu.uuid, unit) if uuid in ended]
            reading = readings.get(unit)
            if reading is None or any(reading.at <= end for end in ends):
                found[unit] = "checking: nobody has looked at it since its last server ended"
            elif unit not in held and (reason := _not_idle(reading, idle_memory_bytes, was_held=bool(ends))):
                found[unit] = reason
    return found


def _not_idle(reading: Reading, idle_memory_bytes: int, *, was_held: bool) -> str:
    used = reading.memory_used_bytes
    if reading.processes is None and used is None:
        return "the driver tells neither its processes nor its memory in use"
    if reading.processes:
        # where no server of ours was, they are somebody else's and `foreign` has them
        first = max(reading.processes, key=lambda process: (process.memory_bytes or 0, process.pid))
        size = "" if first.memory_bytes is None else f" with {_mib(first.memory_bytes)}"
        more = f" and {len(reading.processes) - 1} more are" if len(reading.processes) > 1 else " is"
        return f"process {first.pid}{size}{more} still on it after its last server ended" if was_held else ""
    if used is not None and used > idle_memory_bytes:
        return f"{_mib(used)} of its memory are in use and no process shows; idle is at most {_mib(idle_memory_bytes)}"
    return ""


def foreign(node: Node, readings: Mapping[str, Reading], owners: Holders) -> dict[str, tuple[int, ...]]:
    """The processes, by UUID, that belong to no container which holds that GPU.

    On a split GPU those of an instance count there; the GPU itself has the ones that no instance shows.
    """
    found = {}
    for gpu in node.gpus:
        seen: set[int] = set()
        parts = frozenset(part.uuid for part in gpu.mig)
        for part in sorted(parts):
            seen |= {process.pid for process in _processes(readings, part)}
            found[part] = _strangers(readings, part, {part, gpu.uuid}, owners, set())
        found[gpu.uuid] = _strangers(readings, gpu.uuid, parts | {gpu.uuid}, owners, seen)
    return {uuid: pids for uuid, pids in found.items() if pids}


def _strangers(
    readings: Mapping[str, Reading], uuid: str, rightful: Collection[str], owners: Holders, seen: Collection[int]
) -> tuple[int, ...]:
    return tuple(
        process.pid
        for process in _processes(readings, uuid)
        if process.pid not in seen and owners.get(process.container, frozenset()).isdisjoint(rightful)
    )


def said(pids: Collection[int]) -> str:
    """Say that processes are in the way."""
    listed = ", ".join(map(str, sorted(pids)[:_PIDS_SAID])) + (", ..." if len(pids) > _PIDS_SAID else "")
    if len(pids) == 1:
        return f"1 process that belongs to no server is on it (pid {listed})"
    return f"{len(pids)} processes that belong to no server are on it (pids {listed})"


def withheld(
    node: Node,
    readings: Mapping[str, Reading],
    owners: Holders,
    idle_memory_bytes: int,
    *,
    held: Collection[str] = (),
    ended: Mapping[str, datetime] | None = None,
) -> dict[str, str]:
    """All UUIDs that must not be given away although no lease says so, with the reason, foreign processes included.

    `held` are UUIDs that are taken beside those of the owners, such as reservations; see `quarantined`.
    """
    taken = frozenset(held).union(*owners.values())
    strangers = {uuid: said(pids) for uuid, pids in foreign(node, readings, owners).items()}
    return strangers | quarantined(node, readings, taken, ended or {}, idle_memory_bytes)


def with_foreign(node: Node, strangers: Mapping[str, Collection[int]]) -> Node:
    """Give the node with the counts of `foreign` filled in."""
    return replace(
        node,
        gpus=tuple(
            replace(
                gpu,
                foreign_processes=len(strangers.get(gpu.uuid, ())),
                mig=tuple(replace(part, foreign_processes=len(strangers.get(part.uuid, ()))) for part in gpu.mig),
            )
            for gpu in node.gpus
        ),
    )


def with_missing(node: Node, owners: Holders) -> Node:
    """Give the node with an unhealthy GPU for each UUID that a container holds and the driver does not list."""
    known = {uuid for gpu in node.gpus for uuid in (gpu.uuid, *(part.uuid for part in gpu.mig))}
    gone = sorted(frozenset[str]().union(*owners.values()) - known)
    lost = tuple(
        GPU(uuid=uuid, index=-1, name="GPU", memory_bytes=0, compute_capability=0, unhealthy=MISSING) for uuid in gone
    )
    return replace(node, gpus=node.gpus + lost)


def out_of_service(node: Node, reasons: Mapping[str, str]) -> Node:
    """Give the node as people are shown it: whole GPUs that are withheld are unhealthy, with the reason."""
    return replace(
        node,
        gpus=tuple(
            replace(gpu, unhealthy=gpu.unhealthy or ("" if gpu.mig else reasons.get(gpu.uuid, ""))) for gpu in node.gpus
        ),
    )


def _units(gpu: GPU) -> Iterator[str]:
    if gpu.mig:
        yield from (part.uuid for part in gpu.mig)
    elif not gpu.mig_enabled:
        yield gpu.uuid


def _processes(readings: Mapping[str, Reading], uuid: str) -> Iterator[GPUProcess]:
    reading = readings.get(uuid)
    yield from (reading.processes or ()) if reading is not None else ()


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
