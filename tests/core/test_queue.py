"""Whose turn it is: the property first, then rows by name."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spawner.core.model import Claim, Lease, Mode, Placement, PlacementRules, Refusal
from spawner.core.policy import decide
from spawner.core.queue import Grant, Ticket, in_order, ready
from spawner.core.snapshot import Snapshot

from . import strategies as make
from .strategies import NOW, Cluster, claim, gpu, granted, ids, lease, node

PATIENCE = timedelta(minutes=30)
STEP = timedelta(minutes=20)
LONGEST = timedelta(hours=1)  # max_runtime_s of the claims here


def ticket(name: str, wanted: Claim, *, priority: int = 0, minutes: float = 0) -> Ticket:
    return Ticket(id=name, claim=wanted, priority=priority, since=NOW - timedelta(minutes=minutes))


def turns(tickets: Iterable[Ticket], snapshot: Snapshot, now: datetime = NOW) -> tuple[Grant, ...]:
    return ready(tickets, snapshot, now, patience_s=PATIENCE.total_seconds())


def snapshot_of(cluster: Cluster, leases: Iterable[Lease]) -> Snapshot:
    return Snapshot.of(cluster.nodes, leases, withheld=cluster.withheld, orphans=cluster.orphans, rules=cluster.rules)


def lasting(item: Lease, quarters: int) -> Lease:
    return replace(item, expires=NOW + quarters * timedelta(minutes=15))


@st.composite
def crowded(draw: st.DrawFn) -> Cluster:
    """Two to four GPUs, each leased to somebody until a time of its own."""
    count = draw(st.integers(2, 4))
    box = node(*(gpu(number) for number in range(1, count + 1)), cpus=64)
    leases = tuple(lease(number, *ids(number), user=f"u{number}") for number in range(1, count + 1))
    return Cluster(nodes=(box,), leases=leases, orphans=(), withheld=(), rules=PlacementRules())


@settings(max_examples=40)
@given(
    crowded() | make.clusters(most=4, flavours=("plain", "plain", "mig"), memory=(64, 16)),
    make.wanting(Mode.EXCLUSIVE) | make.wanting(*Mode),
    st.lists(make.claims, max_size=2),
    st.lists(make.claims, min_size=1, max_size=6),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
)
def test_no_starvation(cluster, wanted, before, stream, quarters):
    """The worst company: every lease lasts to its end, and small, important claims never stop coming."""
    big = ticket("big", replace(wanted, user="big"))
    leases = [lasting(item, left) for item, left in zip(cluster.leases, quarters, strict=False)]
    assume(isinstance(decide(big.claim, snapshot_of(cluster, ())), Placement))
    waiting = [big, *(ticket(f"early-{n}", item, minutes=1) for n, item in enumerate(before))]
    # each of those who asked earlier may come first, and then the big one waits for the longest lease there is
    last = NOW + PATIENCE + (len(before) + 1) * LONGEST + 2 * STEP
    now, number = NOW, 0
    while now <= last:
        leases = [item for item in leases if item.expires > now]
        for item in stream:
            number += 1
            newcomer = replace(item, user=f"other-{number}")
            waiting.append(Ticket(id=f"late-{number}", claim=newcomer, priority=9, since=now))
        for grant in turns(waiting, snapshot_of(cluster, leases), now):
            if grant.ticket == big:
                return
            waiting.remove(grant.ticket)
            number += 1
            leases.append(replace(granted(1000 + number, grant.ticket.claim, grant.placement), expires=now + LONGEST))
        now += STEP
    pytest.fail("the big claim was starved")


@settings(max_examples=30)
@given(make.clusters(), st.lists(make.claims, min_size=2, max_size=6), st.lists(st.integers(0, 60), min_size=6))
def test_turns_are_placements_in_order_and_everything_else_cannot_be_had_beside_them(cluster, claims, ages):
    tickets = [
        ticket(str(number), item, priority=number % 2, minutes=age)
        for number, (item, age) in enumerate(zip(claims, ages, strict=False))
    ]
    snapshot = snapshot_of(cluster, cluster.leases)
    got = turns(tickets, snapshot)
    assert turns(reversed(tickets), snapshot) == got
    order = in_order(tickets, NOW, patience_s=PATIENCE.total_seconds())
    assert [grant.ticket for grant in got] == [item for item in order if item in {grant.ticket for grant in got}]
    for number, grant in enumerate(got):
        assert isinstance(decide(grant.ticket.claim, snapshot), Placement)
        snapshot = snapshot.plus(granted(2000 + number, grant.ticket.claim, grant.placement))
    if all(age < PATIENCE.total_seconds() / 60 for age in ages[: len(tickets)]):
        rest = [item for item in tickets if item not in {grant.ticket for grant in got}]
        assert all(isinstance(decide(item.claim, snapshot), Refusal) for item in rest), "nobody waits without a reason"


TWO = node(gpu(1), gpu(2), cpus=64)


def names(*tickets: Ticket, leases: Iterable[Lease] = (), box=TWO) -> list[str]:
    return [grant.ticket.id for grant in turns(tickets, Snapshot.of([box], leases))]


def test_the_important_go_first_then_the_first_to_ask():
    one, two, three = (ticket(name, claim(user=name), minutes=age) for name, age in (("a", 1), ("b", 3), ("c", 2)))
    assert names(one, two, three) == ["b", "c"]
    assert names(replace(one, priority=1), two, three) == ["a", "b"]


def test_after_the_stated_time_the_oldest_goes_before_the_important():
    old = ticket("old", claim(user="old"), minutes=31)
    vips = [ticket(f"vip-{n}", claim(user=f"vip-{n}"), priority=9) for n in range(2)]
    assert names(old, *vips) == ["old", "vip-0"]


def test_small_claims_pass_a_big_one_only_until_its_patience_ends():
    held = lease(1, *ids(1))
    big = claim(user="big", gpus=2, allowed=2)
    small = ticket("small", claim(user="small"))
    assert names(ticket("big", big, minutes=29), small, leases=[held]) == ["small"]
    assert names(ticket("big", big, minutes=31), small, leases=[held]) == []
    without = ticket("no gpu", claim(user="none", gpus=0))
    assert names(ticket("big", big, minutes=31), without, leases=[held]) == ["no gpu"]


def test_what_is_kept_is_what_comes_first_and_no_more():
    ends = [lasting(lease(number, *ids(number), user=f"u{number}"), number) for number in (1, 2)]
    box = node(gpu(1), gpu(2), gpu(3), replace(gpu(4), name="NVIDIA H100"), cpus=64)
    big = ticket("big", claim(user="big", gpus=2, allowed=2, model="A100"), minutes=31)
    small = [ticket(f"small-{n}", claim(user=f"small-{n}")) for n in range(2)]
    assert names(big, *small, leases=ends, box=box) == ["small-0"], "GPU 3 is kept until 1 ends, 4 is none for it"
    assert names(big, *small, leases=ends[1:], box=box) == ["big", "small-0"]


@pytest.mark.parametrize(
    ("wanted", "leases"),
    [
        pytest.param(claim(user="big", gpus=3, allowed=3), (), id="more-than-there-are"),
        pytest.param(claim(user="big"), (lease(1, *ids(1), user="big"),), id="own-server-in-the-way"),
        pytest.param(claim(user="big", model="H100"), (), id="no-such-model"),
    ],
)
def test_who_waits_for_something_that_no_end_of_others_brings_keeps_nothing_back(wanted, leases):
    assert names(ticket("big", wanted, minutes=31), ticket("small", claim(user="small")), leases=leases) == ["small"]
