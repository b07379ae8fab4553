"""Machines, leases and rules, counted once for many decisions.

What must hold: a snapshot never changes; `plus` and `minus` give another one that equals the one counted anew; the
order of nodes and leases does not matter. A lease counts on the machine that it names and on those that have its GPUs;
one whose machine cannot be told counts on every machine, since it runs somewhere.

A unit is what one server can be given: a whole GPU, a MIG instance, or a share of a GPU. Shared memory (/dev/shm) and
/tmp are part of a container's memory (core/limits.py), so a machine's memory is what bounds them, too.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from spawner.core.ledger import Orphan
from spawner.core.limits import memory_to_promise
from spawner.core.model import GPU, Lease, MIGInstance, Mode, Node, PlacementRules
from spawner.core.nvlink import Links, links_among

__all__ = ["DEFAULT_RULES", "Frame", "Kind", "NodeState", "Pool", "Snapshot", "Standing", "Unit", "nano"]

DEFAULT_RULES = PlacementRules()
_GPU_MODES = (Mode.EXCLUSIVE, Mode.MIG, Mode.SHARED)


class Standing(IntEnum):
    """The first thing that stands against giving a unit away, in the order in which people are told."""

    UNHEALTHY = 0
    QUARANTINED = 1
    CLOSED = 2
    FOREIGN = 3
    TAKEN = 4
    FREE = 5


class Kind(NamedTuple):
    """What a claim's wishes and its variant look at; most machines have units of one kind only."""

    driver: str
    name: str
    memory_bytes: int
    compute_capability: int
    profile: str


class Unit(NamedTuple):
    """A free unit. `used` counts what is leased already on the same GPU, `broken` its NVLinks to other free GPUs."""

    used: int
    broken: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The units of one kind on one machine: how many have which standing, and the free ones in order."""

    kind: Kind
    counts: tuple[int, ...]
    free: tuple[Unit, ...]


class _Fixed(NamedTuple):
    """A unit as it is whatever is leased."""

    kind: Kind
    standing: Standing
    uuid: str
    parent: str  # of an instance
    shares: int  # how many servers may share it


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One machine as it is whatever is leased."""

    node: Node
    closed: bool
    whole: tuple[_Fixed, ...]
    shared: tuple[_Fixed, ...]
    instances: tuple[_Fixed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One machine with what runs on it. `memory_free` and `cpus_free` may be negative where rules have changed."""

    frame: Frame
    leases: tuple[Lease, ...]
    extra: tuple[int, int]  # memory and processors of containers that are no leases
    memory_most: int
    memory_free: int
    cpus_most: int  # in billionths, like cpus_free, so that sums are exact in any order
    cpus_free: int
    pools: Mapping[Mode, tuple[Pool, ...]]
    links: Links  # among the free whole GPUs

    def holds(self, memory_bytes: int, cpus: int) -> bool:
        """Whether the machine has memory and processors (in billionths) left for one more container."""
        return memory_bytes <= self.memory_free and cpus <= self.cpus_free


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a decision looks at, by machine name."""

    rules: PlacementRules
    states: Mapping[str, NodeState]
    kinds: Mapping[Mode, frozenset[Kind]]
    held: Mapping[str, int]  # GPUs by user
    role_held: Mapping[str, int]  # GPUs by role
    withheld: frozenset[str]
    homes: Mapping[str, tuple[str, ...]]  # machines by the UUIDs of what they have

    @classmethod
    def of(
        cls,
        nodes: Sequence[Node],
        leases: Iterable[Lease],
        *,
        withheld: Collection[str] = (),
        orphans: Iterable[Orphan] = (),
        rules: PlacementRules = DEFAULT_RULES,
    ) -> "Snapshot":
        """Count what there is; ValueError where two machines have one name.

        Parameters
        ----------
        nodes
            The machines, with the GPUs that the inventory saw.
        leases
            Every lease, reservations and other hubs' included.
        withheld
            UUIDs that nobody may be given although no lease names them.
        orphans
            Containers of ours that are no leases: what they name is withheld, what they use of a machine is used.
        rules
            What the operator has set.
        """
        ordered = sorted(nodes, key=lambda node: node.name)
        names = [node.name for node in ordered]
        if len(set(names)) < len(names):
            raise ValueError(f"two machines have one name among {', '.join(names)}")
        homes = _homes(ordered)
        on: dict[str, list[Lease]] = {name: [] for name in names}
        held, role_held = Counter[str](), Counter[str]()
        for lease in sorted(leases, key=lambda lease: lease.id):
            held[lease.user] += len(lease.gpus)
            role_held[lease.role] += len(lease.gpus)
            for name in _where(lease, homes, on):
                on[name].append(lease)
        kept = frozenset(withheld)
        extra = dict.fromkeys(names, (0, 0))
        for orphan in orphans:
            kept |= frozenset(orphan.gpus)
            for name in _where(orphan, homes, on):
                extra[name] = (extra[name][0] + orphan.memory_bytes, extra[name][1] + nano(orphan.cpus))
        states = {
            node.name: _state(_frame(node, rules), tuple(on[node.name]), extra[node.name], kept, rules)
            for node in ordered
        }
        kinds = {
            mode: frozenset(pool.kind for state in states.values() for pool in state.pools[mode]) for mode in _GPU_MODES
        }
        return cls(rules=rules, states=states, kinds=kinds, held=held, role_held=role_held, withheld=kept, homes=homes)

    def plus(self, lease: Lease) -> "Snapshot":
        """Give the snapshot with one lease more; only the machines that it counts on are counted again."""
        return self._with(lease, 1)

    def minus(self, lease: Lease) -> "Snapshot":
        """Give the snapshot without a lease that is in it."""
        return self._with(lease, -1)

    def _with(self, lease: Lease, change: int) -> "Snapshot":
        states = dict(self.states)
        for name in _where(lease, self.homes, states):
            old = states[name]
            leases = [item for item in old.leases if item.id != lease.id]
            if change > 0:
                leases = sorted([*leases, lease], key=lambda item: item.id)
            states[name] = _state(old.frame, tuple(leases), old.extra, self.withheld, self.rules)
        count = change * len(lease.gpus)
        return replace(
            self,
            states=states,
            held=_added(self.held, lease.user, count),
            role_held=_added(self.role_held, lease.role, count),
        )


def nano(cpus: float) -> int:
    """Processors in billionths, as the engine counts them."""
    return round(cpus * 1_000_000_000)


def _added(counts: Mapping[str, int], key: str, count: int) -> Counter[str]:
    changed = Counter(counts)
    changed[key] += count
    return changed


def _homes(nodes: Iterable[Node]) -> dict[str, tuple[str, ...]]:
    """The machines by the UUIDs of what they have."""
    homes: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        for uuid in _uuids(node):
            homes[uuid] = (*homes.get(uuid, ()), node.name)
    return homes


def _uuids(node: Node) -> Iterator[str]:
    for gpu in node.gpus:
        yield gpu.uuid
        for part in gpu.mig:
            yield part.uuid


def _where(holder: Lease | Orphan, homes: Mapping[str, tuple[str, ...]], names: Collection[str]) -> frozenset[str]:
    """The machines that a container counts on."""
    found = {name for uuid in holder.gpus for name in homes.get(uuid, ())}
    if holder.node in names:
        found.add(holder.node)
    return frozenset(found or names)


def _state(
    frame: Frame, leases: tuple[Lease, ...], extra: tuple[int, int], withheld: frozenset[str], rules: PlacementRules
) -> NodeState:
    node = frame.node
    memory_most = memory_to_promise(node.memory_bytes, rules)
    cpus_most = nano(node.cpus * rules.cpu_overcommit)
    shares = Counter(uuid for lease in leases if lease.mode is Mode.SHARED for uuid in lease.gpus)
    owned = withheld.union(*(lease.gpus for lease in leases if lease.mode is not Mode.SHARED))
    taken = owned.union(shares)
    free = [unit.uuid for unit in frame.whole if unit.standing is Standing.FREE and unit.uuid not in taken]
    links = links_among(node.gpus, free)
    broken = {uuid: len(peers) for uuid, peers in links}
    on_parent = Counter(unit.parent for unit in frame.instances if unit.uuid in taken)
    return NodeState(
        frame=frame,
        leases=leases,
        extra=extra,
        memory_most=memory_most,
        memory_free=memory_most - extra[0] - sum(lease.memory_bytes for lease in leases),
        cpus_most=cpus_most,
        cpus_free=cpus_most - extra[1] - sum(nano(lease.cpus) for lease in leases),
        pools={
            Mode.EXCLUSIVE: _pools((unit, unit.uuid in taken, 0, broken) for unit in frame.whole),
            Mode.MIG: _pools(
                (unit, unit.uuid in taken or unit.parent in taken, on_parent[unit.parent], broken)
                for unit in frame.instances
            ),
            Mode.SHARED: _pools(
                (unit, unit.uuid in owned or shares[unit.uuid] >= unit.shares, shares[unit.uuid], broken)
                for unit in frame.shared
            ),
        },
        links=links,
    )


def _pools(units: Iterable[tuple[_Fixed, bool, int, Mapping[str, int]]]) -> tuple[Pool, ...]:
    """Sort units, each with whether it is taken and what is used beside it, by their kinds."""
    counts: dict[Kind, list[int]] = {}
    free: dict[Kind, list[Unit]] = {}
    for fixed, taken, used, broken in units:
        standing = Standing.TAKEN if taken and fixed.standing is Standing.FREE else fixed.standing
        counts.setdefault(fixed.kind, [0] * len(Standing))[standing] += 1
        if standing is Standing.FREE:
            free.setdefault(fixed.kind, []).append(Unit(used, broken.get(fixed.uuid, 0), fixed.uuid))
    return tuple(
        Pool(kind=kind, counts=tuple(counts[kind]), free=tuple(sorted(free.get(kind, ())))) for kind in sorted(counts)
    )


def _frame(node: Node, rules: PlacementRules) -> Frame:
    whole, shared, instances = [], [], []
    for gpu in node.gpus:
        standing = _standing(node, gpu, rules)
        for part in gpu.mig:
            kind = Kind(node.driver, gpu.name, part.memory_bytes, gpu.compute_capability, part.profile)
            instances.append(_Fixed(kind, _standing(node, gpu, rules, part), part.uuid, gpu.uuid, 0))
        if gpu.mig_enabled or gpu.mig:
            continue  # a parent is never given itself, even while it has no instance
        kind = Kind(node.driver, gpu.name, gpu.memory_bytes, gpu.compute_capability, "")
        whole.append(_Fixed(kind, standing, gpu.uuid, "", 0))
        if (shares := rules.shares_of(gpu.uuid)) > 0:
            share = kind._replace(memory_bytes=gpu.memory_bytes // shares)
            shared.append(_Fixed(share, standing, gpu.uuid, "", shares))
    return Frame(
        node=node,
        closed=node.name in rules.closed,
        whole=tuple(whole),
        shared=tuple(shared),
        instances=tuple(instances),
    )


def _standing(node: Node, gpu: GPU, rules: PlacementRules, part: MIGInstance | None = None) -> Standing:
    """What stands against a unit whatever is leased; FREE where nothing does."""
    uuids = {gpu.uuid} if part is None else {gpu.uuid, part.uuid}
    if gpu.unhealthy:
        return Standing.UNHEALTHY
    if not uuids.isdisjoint(rules.quarantined):
        return Standing.QUARANTINED
    if node.name in rules.closed or not uuids.isdisjoint(rules.closed):
        return Standing.CLOSED
    if gpu.foreign_processes or (part is not None and part.foreign_processes):
        return Standing.FOREIGN
    return Standing.FREE
