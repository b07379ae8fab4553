"""Who gets which GPU.

`place` is one decision on one snapshot: it never waits, never looks anything up and never changes anything. The caller
reserves the result in the same synchronous step. Who decides on many claims counts once (core/snapshot.py) and calls
`decide` for each, with `plus` in between.

What must hold, each a test by its name: no GPU beside an exclusive lease, no parent beside its instances, never more
shares than the operator set, nobody and no role above their number, no machine beyond its memory and processors times
the stated factors; and a lease that ends never turns a placement into a refusal. The order of the inputs does not
matter; ties end in UUID order.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime

from spawner.core.ledger import Orphan
from spawner.core.model import Claim, Code, Lease, Mode, Node, Placement, PlacementRules, Refusal
from spawner.core.nvlink import Joined, joined
from spawner.core.reasons import FITS, no_room, stage_of, why_not
from spawner.core.snapshot import DEFAULT_RULES, Kind, NodeState, Pool, Snapshot, nano

__all__ = ["decide", "gpus_held", "place"]

_Offer = tuple[tuple[int, ...], tuple[str, ...], str]  # how good (smaller is better), UUIDs, machine


def place(
    claim: Claim,
    nodes: Sequence[Node],
    leases: Sequence[Lease],
    now: datetime,
    *,
    withheld: Collection[str] = (),
    orphans: Iterable[Orphan] = (),
    rules: PlacementRules = DEFAULT_RULES,
) -> Placement | Refusal:
    """Find a machine and GPUs for a claim, or name the constraint that stands against it.

    Parameters
    ----------
    claim
        What is asked for.
    nodes
        The machines, with the GPUs that the inventory saw.
    leases
        Every lease on the engine and every reservation, other hubs' too. An expired lease holds its GPUs until its
        container is gone.
    now
        Unused so far: leases end when their containers end, never by the clock.
    withheld
        UUIDs that nobody may be given although no lease names them.
    orphans
        Containers whose labels cannot be read: what they name is withheld, and they use the machine that they run on.
    rules
        What the operator has set.
    """
    del now
    return decide(claim, Snapshot.of(nodes, leases, withheld=withheld, orphans=orphans, rules=rules))


def decide(claim: Claim, snapshot: Snapshot) -> Placement | Refusal:
    """Decide like `place`, on what has been counted already."""
    if refusal := _check_claim(claim, snapshot):
        return refusal
    role = _charged_role(claim, snapshot)
    if isinstance(role, Refusal):
        return role
    if claim.mode is Mode.NONE:
        best = min(_offers_without_gpu(claim, snapshot), default=None)
    else:
        fitting = {kind for kind in snapshot.kinds[claim.mode] if stage_of(claim, kind) == FITS}
        best = min(_offers(claim, snapshot, fitting), default=None)
    if best is not None:
        _, uuids, node = best
        return Placement(node=node, gpus=uuids, role=role)
    if claim.mode is Mode.NONE:
        return no_room(claim, [state for state in snapshot.states.values() if not state.frame.closed])
    return why_not(claim, snapshot)


def gpus_held(user: str, leases: Sequence[Lease]) -> int:
    """The GPUs that a person holds over all their servers; an instance and a share count as one each."""
    return sum(len(lease.gpus) for lease in leases if lease.user == user)


def _check_claim(claim: Claim, snapshot: Snapshot) -> Refusal | None:
    """Refuse what no free GPU could change. ValueError for a claim that contradicts itself (see core/options.py)."""
    if claim.gpus < 0 or (claim.mode is Mode.NONE) != (claim.gpus == 0):
        raise ValueError(f"a claim of {claim.gpus} GPUs in mode {claim.mode}")
    open_nodes = sum(not state.frame.closed for state in snapshot.states.values())
    if open_nodes == 0:
        exist = len(snapshot.states)
        return Refusal.of(Code.NODES_CLOSED, closed=exist, exist=exist)
    if claim.mode is Mode.NONE:
        return None
    entitlement = claim.entitlement
    if claim.mode not in entitlement.modes:
        allowed = ", ".join(entitlement.modes)
        return Refusal.of(Code.MODE_NOT_ALLOWED, mode=claim.mode.value, role=entitlement.role, allowed=allowed)
    if claim.mode is not Mode.EXCLUSIVE and claim.gpus != 1:
        return Refusal.of(Code.MIG_ONE if claim.mode is Mode.MIG else Code.SHARED_ONE, asked=claim.gpus, most=1)
    held = snapshot.held.get(claim.user, 0)
    if held + claim.gpus > entitlement.gpus:
        return Refusal.of(Code.GPU_ENTITLEMENT, asked=claim.gpus, held=held, allowed=entitlement.gpus)
    return None


def _charged_role(claim: Claim, snapshot: Snapshot) -> str | Refusal:
    """Choose the role whose cap the claim counts against: of a person's roles the one with the most room.

    So one more role never takes anything away, and each GPU counts once.
    """
    caps = dict(snapshot.rules.role_gpus)
    room = {
        role: caps[role] - snapshot.role_held.get(role, 0) if role in caps else math.inf
        for role in claim.entitlement.role.split("+")
    }
    role = min(room, key=lambda name: (-room[name], name))
    if claim.gpus > max(0, room[role]):
        held = snapshot.role_held.get(role, 0)
        return Refusal.of(Code.ROLE_GPUS, role=role, asked=claim.gpus, held=held, allowed=caps[role])
    return role


def _offers_without_gpu(claim: Claim, snapshot: Snapshot) -> Iterator[_Offer]:
    """Machines for a server without a GPU: those without GPUs first, then by the memory that is left."""
    sign = 1 if snapshot.rules.ranking == "binpack" else -1
    memory_bytes, cpus = claim.limits.memory_bytes, nano(claim.limits.cpus)
    for name, state in snapshot.states.items():
        if not state.frame.closed and state.holds(memory_bytes, cpus):
            yield (int(bool(state.frame.node.gpus)), sign * state.memory_free), (), name


def _offers(claim: Claim, snapshot: Snapshot, fitting: set[Kind]) -> Iterator[_Offer]:
    """The best that each machine has for the claim."""
    binpack = snapshot.rules.ranking == "binpack"
    memory_bytes, cpus = claim.limits.memory_bytes, nano(claim.limits.cpus)
    for name, state in snapshot.states.items():
        if not state.holds(memory_bytes, cpus):
            continue
        pools = [pool for pool in state.pools[claim.mode] if pool.free and pool.kind in fitting]
        free = sum(len(pool.free) for pool in pools)
        if not pools or free < claim.gpus:
            continue
        crowd = free if binpack else -free
        if claim.mode is Mode.MIG:
            yield _instance(pools, crowd, name)
        elif claim.mode is Mode.SHARED:
            yield _share(pools, crowd, name, binpack=binpack)
        else:
            yield _whole(pools, state, claim.gpus, crowd, binpack=binpack)


def _instance(pools: Sequence[Pool], crowd: int, name: str) -> _Offer:
    """The smallest instance, on the GPU of which the most is leased already."""
    size, used, uuid = min((pool.kind.memory_bytes, -unit.used, unit.uuid) for pool in pools for unit in pool.free)
    return (size, crowd, used), (uuid,), name


def _share(pools: Sequence[Pool], crowd: int, name: str, *, binpack: bool) -> _Offer:
    """The GPU with the most shares used (binpack) or the fewest (spread); opening one breaks few NVLinks."""
    sign = -1 if binpack else 1
    used, broken, uuid = min((sign * unit.used, unit.broken, unit.uuid) for pool in pools for unit in pool.free)
    return (used, broken, crowd), (uuid,), name


def _whole(pools: Sequence[Pool], state: NodeState, count: int, crowd: int, *, binpack: bool) -> _Offer:
    """Whole GPUs, joined by NVLink where there are several, at the cost of as few other links as can be.

    Under spread the emptiest machine comes before the links that are cut there, or all would go to the fullest.
    """
    if count == 1:
        first = min(pool.free[0] for pool in pools)
        best = Joined(0, first.broken, (first.uuid,))
    else:
        best = joined(state.links, tuple(sorted(unit.uuid for pool in pools for unit in pool.free)), count)
    order = (best.missing, best.broken, crowd) if binpack else (best.missing, crowd, best.broken)
    return order, best.uuids, state.frame.node.name
