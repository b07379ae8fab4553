"""What a look at the machine found: ok, a warning or a failure, each with its remedy.

`make run`, the self-check of the network and `gpucampus doctor` speak in findings, to the operator and in English.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Status", "worst"]


class Status(StrEnum):
    """How bad it is; only `fail` makes a command end with 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    check
        What was looked at: a short name that stays the same, such as `engine` or `cgroup memory`.
    status
        How it is.
    text
        What was found, one sentence or a few words.
    remedy
        What to do, as a command where one does it; empty exactly where the status is ok.
    """

    check: str
    status: Status
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.status is Status.OK) == bool(self.remedy):
            raise ValueError(f"{self.check}: what is not ok needs a remedy, and what is ok needs none")


def worst(findings: Iterable[Finding]) -> Status:
    """Give the worst status of some findings; ok where there are none."""
    order = list(Status)
    return max((finding.status for finding in findings), key=order.index, default=Status.OK)
