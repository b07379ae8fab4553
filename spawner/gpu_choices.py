"""The ways to hold GPUs that the spawn form offers, and the picture of the GPUs, as things are now.

What must hold: what is counted as free is what core/policy.py would give away, as far as leases, health and what is
withheld decide; nobody's name is in it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spawner.core.model import GPU, Entitlement, Lease, MIGInstance, Mode, Node, PlacementRules

__all__ = ["GPUChoice", "GPUTile", "SliceTile", "gpu_choices", "gpu_tiles"]

_MISSING = {Mode.EXCLUSIVE: "gpu_missing", Mode.MIG: "mig_missing", Mode.SHARED: "share_missing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUChoice:
    """One way to hold GPUs, or to hold none.

    `count` is the number of whole GPUs, 1 for an instance or a share. `free` and `total` count the same thing: whole
    GPUs, instances of `profile`, or shares; `memory_bytes` is what such an instance has. `reason` names the text that
    says why it cannot be chosen, and is empty if it can.
    """

    value: str
    mode: Mode
    count: int = 0
    profile: str = ""
    memory_bytes: int = 0
    free: int = 0
    total: int = 0
    reason: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTile:
    """A MIG instance in the picture; its state is free, leased, yours or unhealthy."""

    profile: str
    memory_bytes: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUTile:
    """A GPU in the picture; its state is free, leased, yours, shared, shared_yours, mig or unhealthy.

    `shares` is into how many it is divided, and `taken` how many of them are held.
    """

    gpu: GPU
    state: str
    slices: tuple[SliceTile, ...]
    shares: int
    taken: int

    @property
    def whole(self) -> bool:
        """Whether it is not split by MIG."""
        return not (self.gpu.mig_enabled or self.gpu.mig)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owners:
    """Who holds which UUID, as far as this person may know: themselves, or somebody.

    `taken` counts the shares held of each GPU that is shared.
    """

    mine: frozenset[str]
    others: frozenset[str]
    withheld: frozenset[str]
    taken: Mapping[str, int]

    @classmethod
    def of(cls, leases: Sequence[Lease], user: str, withheld: Collection[str], rules: PlacementRules) -> "_Owners":
        """Sort the leases; one that is no share, or a withheld UUID, stands against all shares of a GPU."""
        alone = frozenset(withheld).union(*(lease.gpus for lease in leases if lease.mode is not Mode.SHARED))
        shares = Counter(uuid for lease in leases if lease.mode is Mode.SHARED for uuid in lease.gpus)
        return cls(
            mine=frozenset(uuid for lease in leases if lease.user == user for uuid in lease.gpus),
            others=frozenset(uuid for lease in leases if lease.user != user for uuid in lease.gpus),
            withheld=frozenset(withheld),
            taken={uuid: count for uuid, count in shares.items() if rules.shares_of(uuid) and uuid not in alone},
        )

    def state(self, uuid: str) -> str:
        if uuid in self.taken:
            return "shared_yours" if uuid in self.mine else "shared"
        if uuid in self.mine:
            return "yours"
        return "leased" if uuid in self.others or uuid in self.withheld else "free"

    def slice_state(self, gpu: GPU, part: MIGInstance) -> str:
        """An instance is out of use if it or its GPU is, and leased if somebody holds the whole GPU all the same."""
        if gpu.unhealthy or not self.withheld.isdisjoint((gpu.uuid, part.uuid)):
            return "unhealthy"
        if part.uuid in self.mine:
            return "yours"
        return "free" if (self.mine | self.others).isdisjoint((gpu.uuid, part.uuid)) else "leased"


def gpu_tiles(
    node: Node, leases: Sequence[Lease], *, user: str, withheld: Collection[str], rules: PlacementRules
) -> tuple[GPUTile, ...]:
    """Draw the node's GPUs in the order of their indices; `user` is whose leases are told from those of others."""
    owners = _Owners.of(leases, user, withheld, rules)
    return tuple(_tile(gpu, owners, rules.shares_of(gpu.uuid)) for gpu in sorted(node.gpus, key=lambda gpu: gpu.index))


def _tile(gpu: GPU, owners: _Owners, shares: int) -> GPUTile:
    slices = tuple(
        SliceTile(profile=part.profile, memory_bytes=part.memory_bytes, state=owners.slice_state(gpu, part))
        for part in gpu.mig
    )
    if gpu.unhealthy:
        state = "unhealthy"
    elif gpu.mig_enabled or gpu.mig:
        state = "mig"
    else:
        state = owners.state(gpu.uuid)
    return GPUTile(gpu=gpu, state=state, slices=slices, shares=shares, taken=owners.taken.get(gpu.uuid, 0))


def gpu_choices(
    entitlement: Entitlement, tiles: Sequence[GPUTile], rules: PlacementRules, held: int, previous: Mapping[str, object]
) -> tuple[GPUChoice, ...]:
    """Offer what the entitlement's modes allow, with the reason where it cannot be had now; at most one is chosen.

    `held` is what the person's other servers hold, `previous` the last options of this server.
    """
    choices = [
        replace(choice, reason=_gpu_reason(choice, entitlement.gpus, held))
        for choice in _all_choices(entitlement.gpus, tiles, rules)
        if choice.mode in entitlement.modes
    ]
    possible = [choice for choice in choices if not choice.reason]
    wanted = [choice for choice in possible if _was_chosen(choice, previous)]
    chosen = next(iter(wanted + possible), None)
    return tuple(replace(choice, chosen=choice is chosen) for choice in choices)


def _all_choices(most: int, tiles: Sequence[GPUTile], rules: PlacementRules) -> Iterator[GPUChoice]:
    """What there is in every mode; a node without any MIG instance has one choice that says so."""
    yield GPUChoice(value="none", mode=Mode.NONE)
    whole = [tile for tile in tiles if tile.whole]
    free = sum(tile.state == "free" for tile in whole)
    for count in range(1, most + 1):
        yield GPUChoice(value=str(count), mode=Mode.EXCLUSIVE, count=count, free=free, total=len(whole))
    profiles: dict[str, list[SliceTile]] = {}
    for part in sorted((part for tile in tiles for part in tile.slices), key=lambda part: part.memory_bytes):
        profiles.setdefault(part.profile, []).append(part)
    for profile, parts in profiles.items() or [("", [])]:
        yield GPUChoice(
            value=f"mig:{profile}" if profile else "mig",
            mode=Mode.MIG,
            count=1,
            profile=profile,
            memory_bytes=parts[0].memory_bytes if parts else 0,
            free=sum(part.state == "free" for part in parts),
            total=len(parts),
        )
    if rules.offers_shares:
        open_gpus = [tile for tile in whole if tile.state in ("free", "shared", "shared_yours")]
        left = sum(max(0, tile.shares - tile.taken) for tile in open_gpus)
        total = sum(tile.shares for tile in whole)
        yield GPUChoice(value="shared", mode=Mode.SHARED, count=1, free=left, total=total)


def _gpu_reason(choice: GPUChoice, allowed: int, held: int) -> str:
    if choice.mode is Mode.NONE:
        return ""
    if choice.count > choice.total:
        return _MISSING[choice.mode]
    if choice.count + held > allowed:
        return "gpu_held"
    return "gpu_leased" if choice.count > choice.free else ""


def _was_chosen(choice: GPUChoice, previous: Mapping[str, object]) -> bool:
    """Whether the last options mean this choice; in mode mig without a profile, any instance will do."""
    mode = previous.get("mode")
    if choice.mode in (Mode.MIG, Mode.SHARED):
        return mode == choice.mode and previous.get("profile", choice.profile) == choice.profile
    before = str(previous.get("gpus", "none")).replace("none", "0")
    return mode not in (Mode.MIG, Mode.SHARED) and before == str(choice.count)
