"""Who of the servers that share a GPU has taken more of its memory than their share.

Time slicing isolates nothing: one program can take the memory of all. So the host looks. What must hold: nobody is
ended without a warning and the stated time to react; only the server that is above its share is touched, and of its
processes the biggest; a process is ended once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from spawner.core.model import Lease, Mode
from spawner.core.readings import GPUProcess, Reading

__all__ = ["Excess", "Holder", "Notice", "NoticeCode", "Verdict", "judge"]


class NoticeCode(StrEnum):
    """What the user of a server is told while it runs; messages.py has the sentences."""

    SHARE_EXCEEDED = "gpu-share-exceeded"
    SHARE_ENDED = "gpu-share-ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message for the user of one server."""

    lease: str
    code: NoticeCode
    at: datetime
    params: tuple[tuple[str, str | int | float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A lease and the container that has it."""

    container: str
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A server above its share of one GPU. `ended` are the pids that were ended for it already."""

    holder: Holder
    gpu: str
    used_bytes: int
    share_bytes: int
    since: datetime
    biggest: GPUProcess
    ended: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[str, str]:
        """Which server and which GPU it is about."""
        return self.holder.container, self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All that are above now, those of them to be warned, and those whose biggest process is to be ended."""

    excesses: tuple[Excess, ...] = ()
    warn: tuple[Excess, ...] = ()
    end: tuple[Excess, ...] = ()


def judge(
    readings: Mapping[str, Reading],
    holders: Iterable[Holder],
    shares: Mapping[str, int],
    before: Iterable[Excess],
    grace_s: float,
) -> Verdict:
    """Compare what each server uses with its share.

    Parameters
    ----------
    readings
        The last reading of each GPU.
    holders
        Leases with their containers; only those of the mode shared are looked at.
    shares
        The bytes of one share, by the GPU's UUID; a GPU that is not in it is not judged.
    before
        The excesses of the last verdict: a server that is below its share in between starts anew.
    grace_s
        How long a server may stay above its share once it was warned.
    """
    known = {excess.key: excess for excess in before}
    now, warn, end = [], [], []
    for holder in sorted(holders, key=lambda item: item.container):
        for gpu in holder.lease.gpus if holder.lease.mode is Mode.SHARED else ():
            if gpu not in readings or gpu not in shares:
                continue
            excess = _excess(readings[gpu], holder, shares[gpu], known.get((holder.container, gpu)))
            if excess is None:
                continue
            if excess.key not in known:
                warn.append(excess)
            elif readings[gpu].at - excess.since >= timedelta(seconds=grace_s):
                end.append(excess)
                excess = replace(excess, ended=excess.ended | {excess.biggest.pid})
            now.append(excess)
    return Verdict(excesses=tuple(now), warn=tuple(warn), end=tuple(end))


def _excess(reading: Reading, holder: Holder, share_bytes: int, before: Excess | None) -> Excess | None:
    ended = before.ended if before is not None else frozenset()
    # what was ended a moment ago may still be listed while it dies
    own = [
        process
        for process in reading.processes or ()
        if process.container == holder.container and process.pid not in ended
    ]
    used = sum(process.memory_bytes or 0 for process in own)
    if used <= share_bytes:
        return None
    return Excess(
        holder=holder,
        gpu=reading.uuid,
        used_bytes=used,
        share_bytes=share_bytes,
        since=before.since if before is not None else reading.at,
        biggest=max(own, key=lambda process: (process.memory_bytes or 0, process.pid)),
        ended=ended,
    )
