"""Whose turn it is: first come, first served within a priority, and nobody waits for ever.

What must hold, `no_starvation`: a ticket that would be placed if nobody else held anything is placed in the end,
however many smaller or more important claims come after it. Two rules do it. A ticket that has waited longer than the
stated time goes before all younger ones, whatever their priority. And while it cannot be placed, what it will get
first is kept for it, so that nobody behind it takes the GPUs one by one as they become free. Who waits for the end of
a server of their own, or for a machine that is out of service, keeps nothing back.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spawner.core.model import Claim, Lease, Placement, lease_for
from spawner.core.policy import decide
from spawner.core.snapshot import Snapshot

__all__ = ["Grant", "Ticket", "in_order", "ready"]

MOST_KEPT = 4  # one is enough against starvation; each costs a look at every lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A place in the queue. A higher priority goes first; `since` is when the person asked."""

    id: str
    claim: Claim
    priority: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A ticket whose turn it is, and where it goes."""

    ticket: Ticket
    placement: Placement


def in_order(tickets: Iterable[Ticket], now: datetime, *, patience_s: float) -> list[Ticket]:
    """Put tickets in the order of their turns: those that have waited longer than `patience_s` seconds, then the rest.

    The first go by the time of asking alone, the rest by priority, then time.
    """
    limit = now - timedelta(seconds=patience_s)

    def turn(ticket: Ticket) -> tuple[bool, int, datetime, str]:
        young = ticket.since > limit
        return young, -ticket.priority if young else 0, ticket.since, ticket.id

    return sorted(tickets, key=turn)


def ready(tickets: Iterable[Ticket], snapshot: Snapshot, now: datetime, *, patience_s: float) -> tuple[Grant, ...]:
    """Tell which tickets are granted now, in the order of their turns.

    Parameters
    ----------
    tickets
        Everybody who waits.
    snapshot
        The machines with every lease and reservation.
    now
        The time, in UTC.
    patience_s
        After so many seconds of waiting a ticket that cannot be placed keeps back what it will get first.
    """
    limit, kept = now - timedelta(seconds=patience_s), 0
    leases = {lease.id: lease for state in snapshot.states.values() for lease in state.leases}
    grants: list[Grant] = []
    for ticket in in_order(tickets, now, patience_s=patience_s):
        answer = decide(ticket.claim, snapshot)
        if isinstance(answer, Placement):
            grants.append(Grant(ticket=ticket, placement=answer))
            lease = _lease(ticket, answer, now)
            leases[lease.id] = lease
            snapshot = snapshot.plus(lease)
            continue
        patient = ticket.since > limit or kept >= MOST_KEPT
        if not patient and (first := _first_to_come(ticket.claim, snapshot, leases.values())):
            kept += 1
            snapshot = snapshot.plus(_lease(ticket, first, now))
    return tuple(grants)


def _first_to_come(claim: Claim, snapshot: Snapshot, leases: Collection[Lease]) -> Placement | None:
    """What a claim gets first as the leases of others end; None where that would not do.

    A claim that can be placed still can when more leases have ended, so the least number of ends is found by halving.
    """
    ends = [lease for lease in sorted(leases, key=lambda item: (item.expires, item.id)) if lease.user != claim.user]
    if not isinstance(best := decide(claim, _without(snapshot, ends)), Placement):
        return None
    low, high = 0, len(ends)  # not placed after the first `low` ends, placed after `high`
    while high - low > 1:
        middle = (low + high) // 2
        answer = decide(claim, _without(snapshot, ends[:middle]))
        if isinstance(answer, Placement):
            high, best = middle, answer
        else:
            low = middle
    return best


def _without(snapshot: Snapshot, ended: Sequence[Lease]) -> Snapshot:
    for lease in ended:
        snapshot = snapshot.minus(lease)
    return snapshot


def _lease(ticket: Ticket, placement: Placement, now: datetime) -> Lease:
    """The lease as it would be, which nothing but a snapshot ever sees."""
    # a lease's own id has no space
    return lease_for(ticket.claim, placement, lease_id=f"ticket {ticket.id}", hub="", image="", now=now)
