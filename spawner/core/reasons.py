"""Why a claim cannot be placed.

What must hold: the reason is the first constraint, in a fixed order, that leaves no single machine with enough for the
claim. It carries what was asked for and the number that fell short: `free`, the most that is left on one machine.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from spawner.core.catalog import runs_on
from spawner.core.model import Claim, Code, Mode, Refusal
from spawner.core.snapshot import Kind, NodeState, Snapshot, Standing, nano

__all__ = ["FITS", "no_room", "stage_of", "why_not"]

# Stages before the standings of snapshot.py: what the claim asks of a GPU, then what its variant needs.
_MODEL, _PROFILE, _MEMORY, _VARIANT, FITS = range(5)

_STANDINGS = {
    Standing.UNHEALTHY: (Code.GPU_UNHEALTHY, "unhealthy"),
    Standing.QUARANTINED: (Code.GPU_QUARANTINED, "quarantined"),
    Standing.CLOSED: (Code.GPU_CLOSED, "closed"),
    Standing.FOREIGN: (Code.GPU_FOREIGN, "foreign"),
    Standing.TAKEN: (Code.GPUS_LEASED, "leased"),
}
_LEASED = {
    Mode.EXCLUSIVE: Code.GPUS_LEASED,
    Mode.MIG: Code.INSTANCES_LEASED,
    Mode.SHARED: Code.SHARES_LEASED,
}
_WORD = re.compile(r"[^\W_]+")


def stage_of(claim: Claim, kind: Kind) -> int:
    """The first stage at which a kind of GPU does not suit the claim; FITS where it does."""
    if not _words(claim.model) <= _words(kind.name):
        return _MODEL
    if claim.profile and claim.profile != kind.profile:
        return _PROFILE
    if kind.memory_bytes < claim.gpu_memory_bytes:
        return _MEMORY
    return FITS if runs_on(claim.variant, kind.driver, kind.compute_capability) is None else _VARIANT


def why_not(claim: Claim, snapshot: Snapshot) -> Refusal:
    """Name the first constraint that leaves too few GPUs, instances or shares, or else too little of the machines."""
    states = tuple(snapshot.states.values())
    stages = {kind: stage_of(claim, kind) for kind in snapshot.kinds[claim.mode]}
    tallies = [_tally(state, claim.mode, stages) for state in states]
    left = [sum(tally) for tally in tallies]
    if max(left, default=0) < claim.gpus:
        if claim.mode is not Mode.EXCLUSIVE:
            return Refusal.of(Code.MODE_NOT_OFFERED, mode=claim.mode.value)
        return Refusal.of(Code.NO_GPUS, asked=claim.gpus, exist=max(left, default=0))
    for stage in range(FITS + Standing.FREE):
        exist = sum(left)
        left = [count - tally[stage] for count, tally in zip(left, tallies, strict=True)]
        if max(left) < claim.gpus:
            if stage < FITS:
                return _misfit(claim, stages, stage, max(left))
            return _standing(claim, Standing(stage - FITS), max(left), exist, exist - sum(left))
    return no_room(claim, [state for state, count in zip(states, left, strict=True) if count >= claim.gpus])


def no_room(claim: Claim, states: Sequence[NodeState]) -> Refusal:
    """Say which is short on machines that would do otherwise: memory first, then processors where memory is left."""
    memory = max(state.memory_free for state in states)
    asked = claim.limits.memory_bytes
    if memory < asked:
        most = max(state.memory_most for state in states)
        return Refusal.of(Code.HOST_MEMORY, asked=asked, free=max(0, memory), most=most)
    roomy = [state for state in states if state.memory_free >= asked]
    free = max(0, *(state.cpus_free for state in roomy))
    most = max(state.cpus_most for state in roomy)
    return Refusal.of(Code.HOST_CPUS, asked=_cpus(nano(claim.limits.cpus)), free=_cpus(free), most=_cpus(most))


def _cpus(billionths: int) -> int | float:
    """Processors to read, rounded down: 2 and not 2.0, else three digits."""
    thousandths = billionths // (nano(1) // 1000)
    return thousandths / 1000 if thousandths % 1000 else thousandths // 1000


def _tally(state: NodeState, mode: Mode, stages: dict[Kind, int]) -> list[int]:
    """How many units of a machine end at which stage; the last number counts those that nothing stands against."""
    tally = [0] * (FITS + len(Standing))
    for pool in state.pools[mode]:
        stage = stages[pool.kind]
        if stage < FITS:
            tally[stage] += sum(pool.counts)
        else:
            for standing, count in enumerate(pool.counts):
                tally[FITS + standing] += count
    return tally


def _misfit(claim: Claim, stages: dict[Kind, int], stage: int, free: int) -> Refusal:
    kinds = sorted(kind for kind, reached in stages.items() if reached >= stage)
    if stage == _MODEL:
        models = ", ".join(sorted({kind.name for kind in kinds}))
        return Refusal.of(Code.GPU_MODEL, model=claim.model, asked=claim.gpus, free=free, models=models)
    if stage == _PROFILE:
        profiles = ", ".join(sorted({kind.profile for kind in kinds if kind.profile}))
        return Refusal.of(Code.MIG_PROFILE, profile=claim.profile, asked=claim.gpus, free=free, profiles=profiles)
    if stage == _MEMORY:
        most = max(kind.memory_bytes for kind in kinds)
        return Refusal.of(Code.GPU_MEMORY, needed=claim.gpu_memory_bytes, most=most, asked=claim.gpus, free=free)
    misfits = (runs_on(claim.variant, kind.driver, kind.compute_capability) for kind in kinds)
    return min((item for item in misfits if item is not None), key=lambda item: (item.code, item.params))


def _standing(claim: Claim, standing: Standing, free: int, exist: int, lost: int) -> Refusal:
    code, word = _STANDINGS[standing]
    if standing is Standing.TAKEN:
        code = _LEASED[claim.mode]
    return Refusal.of(code, asked=claim.gpus, free=free, exist=exist, **{word: lost})


@lru_cache(maxsize=1024)
def _words(text: str) -> frozenset[str]:
    """The words of a GPU's name: "A10" is not one of "NVIDIA A100-SXM4-80GB", "a100" and "80gb a100" are."""
    return frozenset(_WORD.findall(text.casefold()))
