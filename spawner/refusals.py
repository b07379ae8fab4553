"""What went wrong with a start, as the one exception that JupyterHub shows to people and counts against nobody."""

from jupyterhub.spawner import SpawnException

from spawner.arbiter import Refused
from spawner.core.engine_errors import refusal_of
from spawner.core.exits import End
from spawner.core.model import Code, Refusal
from spawner.docker_api import EngineFails, EngineRefuses, EngineSaysGone, EngineUnknown
from spawner.messages import Language, ended, sentence

__all__ = ["NOT_DONE", "died", "said"]

NOT_DONE = (Refused, EngineUnknown, EngineRefuses, EngineSaysGone)
_STATUS = {
    Code.GPUS_LEASED: 409,
    Code.ROLE_MISSING: 403,
    Code.ENGINE_UNKNOWN: 503,
    Code.HOME_UNAVAILABLE: 503,
    Code.GPU_DRIVER_MISMATCH: 503,
    Code.GPU_GONE: 503,
    Code.GPU_RUNTIME_MISSING: 503,
}


def said(error: Exception, language: Language) -> SpawnException:
    """Say why a start was refused, or what the engine's trouble with it means."""
    if isinstance(error, Refused):
        refusal = error.refusal
    elif isinstance(error, EngineRefuses | EngineFails | EngineSaysGone):
        refusal = refusal_of(str(error))
    else:
        refusal = Refusal.of(Code.ENGINE_UNKNOWN)
    text = sentence(refusal, language)
    return _exception(text, refusal.code.value, _STATUS.get(refusal.code, 400))


def died(end: End, language: Language) -> SpawnException:
    """Say that a server ended while somebody waited for it, and why."""
    return _exception(ended(end, language), end.code.value, 500)


def _exception(text: str, reason: str, status: int) -> SpawnException:
    """Build the one exception whose words reach people; the hub looks for them in an attribute of its own."""
    error = SpawnException(text, reason=reason, status_code=status)
    error.jupyterhub_message = text
    return error
