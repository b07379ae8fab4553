"""Why a server ended, from what the engine says of its container."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["End", "EndCode", "Final", "why_ended"]

_SIGKILL, _SIGTERM = 137, 143
_NOT_STARTED = frozenset({125, 126, 127, 128})


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
    """The engine's words on a container that does not run. `error` is State.Error, in the engine's own language."""

    exit_code: int
    oom_killed: bool
    error: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Why a server ended: a code and the values its sentence is made of."""

    code: EndCode
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
        return End(code=EndCode.NOT_STARTED, params=(("error", final.error), ("status", final.exit_code)))
    if final.exit_code:
        return End(code=EndCode.FAILED, params=(("status", final.exit_code),))
    return End(code=EndCode.FINISHED)
