"""Why a server ended, from what the engine says of its container."""

from dataclasses import dataclass
from enum import StrEnum

from spawner.core import health
from spawner.core.names import printable

__all__ = ["WORDS_TELL", "End", "EndCode", "Final", "why_ended"]

_SIGKILL, _SIGTERM = 137, 143
_NOT_STARTED = frozenset({125, 126, 127, 128})
_LONGEST = 200
WORDS_TELL = frozenset({health.STATUS, 126, 127})  # exit statuses that the container's last words explain


class EndCode(StrEnum):
    """The kinds of end; messages.py has a sentence for each."""

    OUT_OF_MEMORY = "out-of-memory"
    KILLED = "killed"
    STOPPED = "stopped"
    NOT_STARTED = "not-started"
    FAILED = "failed"
    FINISHED = "finished"
    EXPIRED = "expired"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The engine's words on a container that does not run.

    `error` is State.Error, in the engine's own language; `words` the last that the container wrote, read for the exit
    statuses in WORDS_TELL alone.
    """

    exit_code: int
    oom_killed: bool
    error: str
    memory_bytes: int
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Why a server ended: a code and the values its sentence is made of."""

    code: EndCode | health.HealthCode
    params: tuple[tuple[str, str | int | float], ...] = ()


def why_ended(final: Final) -> End:
    """Name the reason.

    The engine sets OOMKilled on a container whose child was killed while process 1 lived on, so the flag alone says
    nothing of the end: it must come with exit status 137.
    """
    if final.exit_code == _SIGKILL:
        if final.oom_killed:
            return End(code=EndCode.OUT_OF_MEMORY, params=(("memory", final.memory_bytes),))
        return End(code=EndCode.KILLED)
    if final.exit_code == _SIGTERM:
        return End(code=EndCode.STOPPED)
    if final.error or final.exit_code in _NOT_STARTED:
        last = next((line for line in reversed(final.words.splitlines()) if line.strip()), "")
        error = final.error or printable(last, _LONGEST)
        return End(code=EndCode.NOT_STARTED, params=(("error", error), ("status", final.exit_code)))
    if not final.exit_code:
        return End(code=EndCode.FINISHED)
    failed = EndCode.FAILED, (("status", final.exit_code),)
    code, params = (health.finding_of(final.words) if final.exit_code == health.STATUS else None) or failed
    return End(code=code, params=params)
