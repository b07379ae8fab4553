"""How many claims a second are decided on 64 machines with 8 GPUs each: `python -m tests.bench.bench_place`.

Two situations, each with 10, 100, 1,000 and 10,000 claims waiting. "full": every GPU is leased and each decision is a
refusal with its reason, as when the queue looks whether anybody fits. "busy": a lease ends before each decision, so
that most claims are placed and the snapshot changes twice a decision. What is measured is the time of one process on
its processor. The status is 1 where fewer than 2,000 decisions a second were made with 1,000 waiting, or where a
decision with 10,000 waiting takes much longer than one with 10.
"""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice
from time import process_time

from spawner.core.model import GIB, GPU, Claim, Lease, Mode, Node, Placement, PlacementRules
from spawner.core.policy import decide, place
from spawner.core.snapshot import Snapshot
from tests.core.strategies import NEWER, NOW, claim, granted, lease, linked

NODES, GPUS = 64, 8
WAITING = (10, 100, 1_000, 10_000)
DECISIONS = 3_000
TARGET = 2_000
FLAT = 2.0  # times as long for a thousand times as many; a shared machine is no better clock
RULES = PlacementRules(shares_per_gpu=4, memory_overcommit=1.5)


def cluster() -> tuple[Node, ...]:
    """Half the machines have a switch, the other half pairs."""
    return tuple(_machine(number) for number in range(NODES))


def _machine(number: int) -> Node:
    gpus = [
        GPU(
            uuid=f"GPU-{number:04d}-{place:04d}",
            index=place,
            name="NVIDIA A100-SXM4-80GB",
            memory_bytes=80 * GIB,
            compute_capability=80,
        )
        for place in range(GPUS)
    ]
    joined = [gpus] if number % 2 else [gpus[start : start + 2] for start in range(0, GPUS, 2)]
    return Node(name=f"node-{number:02d}", gpus=linked(*joined), driver="580.65.06", memory_bytes=1024 * GIB, cpus=128)


def waiting(count: int) -> list[Claim]:
    """As many claims, of people of their own: one, two or four GPUs, or a share of one."""
    shapes = cycle([(Mode.EXCLUSIVE, 1), (Mode.EXCLUSIVE, 2), (Mode.SHARED, 1), (Mode.EXCLUSIVE, 4)])
    return [
        claim(user=f"user-{number}", mode=mode, gpus=gpus, allowed=8, variant=NEWER)
        for number, (mode, gpus) in enumerate(islice(shapes, count))
    ]


def full(nodes: tuple[Node, ...]) -> list[Lease]:
    """A lease on each GPU."""
    uuids = [(node.name, gpu.uuid) for node in nodes for gpu in node.gpus]
    return [lease(number, uuid, user=f"holder-{number}", node=name) for number, (name, uuid) in enumerate(uuids)]


def decide_full(snapshot: Snapshot, claims: list[Claim], _: list[Lease]) -> int:
    """Refuse everybody in turn."""
    for wanted in islice(cycle(claims), DECISIONS):
        assert not isinstance(decide(wanted, snapshot), Placement)
    return 0


def decide_busy(snapshot: Snapshot, claims: list[Claim], leases: list[Lease]) -> int:
    """End the oldest lease, then decide; who is placed holds a lease of their own."""
    held = deque(leases)
    placed = 0
    for number, wanted in enumerate(islice(cycle(claims), DECISIONS)):
        snapshot = snapshot.minus(held.popleft())
        person = replace(wanted, user=f"{wanted.user}-{number}")
        answer = decide(person, snapshot)
        if isinstance(answer, Placement):
            placed += 1
            new = granted(10_000 + number, person, answer)
            held.append(new)
            snapshot = snapshot.plus(new)
        if not held:
            break
    return placed


def measure(work: Callable[[Snapshot, list[Claim], list[Lease]], int], count: int) -> tuple[float, int]:
    """Decisions a second, and how many were placements."""
    nodes = cluster()
    leases = full(nodes)
    snapshot = Snapshot.of(nodes, leases, rules=RULES)
    claims = waiting(count)
    start = process_time()
    placed = work(snapshot, claims, leases)
    return DECISIONS / (process_time() - start), placed


def measure_alone() -> float:
    """Decisions a second of `place`, which counts everything anew for each."""
    nodes = cluster()
    leases = full(nodes)
    start = process_time()
    for wanted in waiting(50):
        place(wanted, nodes, leases, NOW, rules=RULES)
    return 50 / (process_time() - start)


def main() -> int:
    """Print the figures; see the module."""
    good = True
    print(f"{NODES} machines x {GPUS} GPUs, decisions a second on one core")
    for name, work in (("full", decide_full), ("busy", decide_busy)):
        rates = {count: measure(work, count) for count in WAITING}
        for count, (rate, placed) in rates.items():
            print(f"  {name}, {count:>6,} waiting: {rate:>8,.0f}   ({placed:,} of {DECISIONS:,} placed)")
        good &= rates[1_000][0] >= TARGET and rates[WAITING[-1]][0] * FLAT >= rates[WAITING[0]][0]
    print(f"  alone (place, everything counted anew): {measure_alone():,.0f}")
    print(f"target: {TARGET:,} with 1,000 waiting, flat in the number waiting: {'met' if good else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
