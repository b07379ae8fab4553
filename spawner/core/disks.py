"""When a disk is too full for another server.

What must hold: a disk that nobody could look at is never full; of several full disks the fullest is named; what is used
counts against what users may use, as `df` does, since a file system keeps some for root.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from spawner.core.model import Code, Refusal

__all__ = ["FULL_PERCENT", "WARN_PERCENT", "Disk", "refusal"]

WARN_PERCENT = 85
FULL_PERCENT = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One file system, by the names of what is kept on it, such as `state` and `homes`."""

    names: tuple[str, ...]
    path: str
    used_bytes: int
    available_bytes: int

    @property
    def percent(self) -> int:
        """How full it is; a file system without a size, such as one that is made on demand, is empty."""
        size = self.used_bytes + self.available_bytes
        return 100 * self.used_bytes // size if size else 0

    @property
    def said(self) -> str:
        """Its names in one phrase."""
        return " and ".join(self.names)


def refusal(disks: Iterable[Disk]) -> Refusal | None:
    """Refuse new servers where a disk is full; None where none is known to be."""
    fullest = max(disks, key=lambda disk: (disk.percent, disk.names), default=None)
    if fullest is None or fullest.percent < FULL_PERCENT:
        return None
    return Refusal.of(Code.DISK_FULL, disk=fullest.said, percent=fullest.percent, most=FULL_PERCENT)
