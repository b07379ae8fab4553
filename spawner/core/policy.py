"""Who gets which GPU.

`place` is one decision on one snapshot: it never waits, never looks anything up and never changes anything. The caller
reserves the result in the same synchronous step. The order of the inputs does not matter; ties end in UUID order.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from spawner.core.catalog import runs_on
from spawner.core.model import GPU, Claim, Code, Lease, Mode, Node, Placement, Refusal

__all__ = ["gpus_held", "place"]


def place(
    claim: Claim, nodes: Sequence[Node], leases: Sequence[Lease], now: datetime, *, withheld: Collection[str] = ()
) -> Placement | Refusal:
    """Find GPUs for a claim, or name the constraint that stands against it.

    Parameters
    ----------
    claim
        What is asked for.
    nodes
        The machines, with the GPUs that the inventory saw.
    leases
        Every lease on the engine, other hubs' too. An expired lease holds its GPUs until its container is gone.
    now
        Unused in the modes offered so far: leases end when their containers end, never by the clock.
    withheld
        UUIDs that nobody may be given although no lease names them (containers whose labels cannot be read).
    """
    del now
    if not nodes:
        return Refusal.of(Code.NO_GPUS, asked=claim.gpus)
    if claim.mode is Mode.NONE:
        return Placement(node=min(node.name for node in nodes), gpus=())
    if claim.mode is not Mode.EXCLUSIVE:
        return Refusal.of(Code.MODE_NOT_OFFERED, mode=claim.mode.value)
    if claim.mode not in claim.entitlement.modes:
        return Refusal.of(Code.MODE_NOT_ALLOWED, mode=claim.mode.value, role=claim.entitlement.role)
    held = gpus_held(claim.user, leases)
    if held + claim.gpus > claim.entitlement.gpus:
        return Refusal.of(Code.GPU_ENTITLEMENT, asked=claim.gpus, held=held, allowed=claim.entitlement.gpus)
    return _place_whole(claim, nodes, leases, frozenset(withheld))


def gpus_held(user: str, leases: Sequence[Lease]) -> int:
    """The GPUs that a person holds over all their servers."""
    return sum(len(lease.gpus) for lease in leases if lease.user == user)


def _place_whole(
    claim: Claim, nodes: Sequence[Node], leases: Sequence[Lease], withheld: frozenset[str]
) -> Placement | Refusal:
    taken = frozenset(uuid for lease in leases for uuid in lease.gpus)
    best: tuple[int, str, tuple[str, ...]] | None = None
    for node in nodes:
        free = sorted(
            gpu.uuid
            for gpu in node.gpus
            if _usable(gpu, node, claim) is None and not _named(gpu, taken) and not _named(gpu, withheld)
        )
        if len(free) >= claim.gpus:
            # binpack: the node with the fewest free GPUs that is enough, then by name
            candidate = (len(free), node.name, tuple(free[: claim.gpus]))
            best = min(best, candidate) if best else candidate
    if best is not None:
        return Placement(node=best[1], gpus=best[2])
    return _why_not(claim, nodes, taken, withheld)


def _usable(gpu: GPU, node: Node, claim: Claim) -> Refusal | None:
    if gpu.unhealthy or gpu.mig_enabled:
        return Refusal.of(Code.GPU_UNHEALTHY, unhealthy=1)
    return runs_on(claim.variant, node.driver, gpu.compute_capability)


def _named(gpu: GPU, uuids: frozenset[str]) -> bool:
    """Whether a GPU or one of its slices is among the UUIDs: parent and slices exclude each other."""
    return gpu.uuid in uuids or any(instance.uuid in uuids for instance in gpu.mig)


def _why_not(claim: Claim, nodes: Sequence[Node], taken: frozenset[str], withheld: frozenset[str]) -> Refusal:
    """Name the first constraint that leaves too few GPUs, widest first: existence, health, variant, leases."""
    whole = [(gpu, node) for node in nodes for gpu in node.gpus if not gpu.mig_enabled]
    most = max((sum(not gpu.mig_enabled for gpu in node.gpus) for node in nodes), default=0)
    if most < claim.gpus:
        return Refusal.of(Code.NO_GPUS, asked=claim.gpus, exist=most)
    misfits = sorted(
        (refusal.code, refusal.params)
        for gpu, node in whole
        if not gpu.unhealthy and (refusal := runs_on(claim.variant, node.driver, gpu.compute_capability)) is not None
    )
    fitting = [gpu for gpu, node in whole if _usable(gpu, node, claim) is None]
    if misfits and len(fitting) < claim.gpus:
        code, params = misfits[0]
        return Refusal(code=code, params=params)
    unhealthy = sum(bool(gpu.unhealthy) for gpu, _ in whole)
    leased = sum(_named(gpu, taken | withheld) for gpu in fitting)
    if leased == 0 or len(fitting) < claim.gpus:
        return Refusal.of(Code.GPU_UNHEALTHY, asked=claim.gpus, unhealthy=unhealthy, exist=len(whole))
    return Refusal.of(Code.GPUS_LEASED, asked=claim.gpus, leased=leased, exist=len(fitting))
