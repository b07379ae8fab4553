"""What rounds of breaking came to: the zeros, and where the hub was broken.

A double grant is a GPU that two running containers hold, a leaked lease one without a running server that the hub
knows, an unexplained container one that no server of the hub explains. With a whole hub two more are counted: a Stop
that was not answered with "stopped" or "stopping", and a server that does not come to rest, or that nobody can reach.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spawner.core.ledger import LABEL

__all__ = ["SETTLE_S", "USERS", "Verdict", "doubles", "leaked", "runs", "unexplained"]

USERS = ("ann", "bob", "cem", "dan", "eva", "fay")
SETTLE_S = 40.0
_RUNS = ("running", "paused")


@dataclass
class Verdict:
    """What a number of rounds came to."""

    rounds: int = 0
    double_grants: int = 0
    leaked_leases: int = 0
    unexplained_containers: int = 0
    refused_stops: int = 0
    odd_servers: int = 0
    broken_at: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def at_a_call(self) -> int:
        """Rounds that broke the hub at an engine call; in the others it had made fewer, and was broken after them."""
        return sum(count for place, count in self.broken_at.items() if "call" in place)

    @property
    def zeros(self) -> tuple[int, int, int]:
        """The three numbers that must be zero."""
        return self.double_grants, self.leaked_leases, self.unexplained_containers

    @property
    def hub_zeros(self) -> tuple[int, int]:
        """The two more that must be zero where the hub is a whole one."""
        return self.refused_stops, self.odd_servers

    def broken(self, do: str, call: int, *, after: bool, reached: bool) -> None:
        """Note where a round broke its hub; one that made fewer calls was broken at the end of what it did."""
        when = f"{'after' if after else 'before'} call {call}" if reached else "at its end"
        self.broken_at[f"{do} {when}"] += 1


def runs(row: Mapping[str, Any]) -> bool:
    """Whether a container of the engine's list runs."""
    return row["State"] in _RUNS


def doubles(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """GPUs that more than one running container holds."""
    held = Counter(gpu for row in rows if runs(row) for gpu in row["Labels"][LABEL + "gpus"].split(",") if gpu)
    return sorted(gpu for gpu, count in held.items() if count > 1)


def leaked(rows: Iterable[Mapping[str, Any]], leases: Iterable[str], known: Collection[str]) -> list[str]:
    """Leases without a running server that the hub knows."""
    running = {row["Labels"][LABEL + "lease"] for row in rows if runs(row)}
    return sorted(set(leases) - running.intersection(known))


def unexplained(rows: Iterable[Mapping[str, Any]], known: Collection[str]) -> list[str]:
    """Containers that no server of the hub explains."""
    return sorted(row["Id"][:12] for row in rows if row["Labels"][LABEL + "lease"] not in known)
