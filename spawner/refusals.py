"""What went wrong with a start, as the one exception that JupyterHub shows to people and counts against nobody."""

from jupyterhub.spawner import SpawnException

from spawner.arbiter import Refused
from spawner.core.engine_errors import refusal_of
from spawner.core.exits import End
from spawner.core.model import Code, Refusal
from spawner.docker_api import EngineFails, EngineRefuses, EngineSaysGone, EngineUnknown
from spawner.messages import Language, ended, sentence

__all__ = ["NOT_DONE", "died", "refusal_for", "said"]

NOT_DONE = (Refused, EngineUnknown, EngineRefuses, EngineSaysGone)
_STATUS = {
    **dict.fromkeys((Code.GPUS_LEASED, Code.INSTANCES_LEASED, Code.SHARES_LEASED, Code.ROLE_GPUS), 409),
    **dict.fromkeys((Code.HOST_MEMORY, Code.HOST_CPUS), 409),
    **dict.fromkeys(
        (Code.GPU_UNHEALTHY, Code.GPU_QUARANTINED, Code.GPU_CLOSED, Code.GPU_FOREIGN, Code.NODES_CLOSED), 503
    ),
    Code.ROLE_MISSING: 403,
    Code.DISK_FULL: 507,
    Code.ENGINE_UNKNOWN: 503,
    Code.HOME_UNAVAILABLE: 503,
    **dict.fromkeys((Code.IMAGE_CHANGED, Code.IMAGE_UNRECORDED, Code.IMAGE_UNVERIFIED, Code.IMAGE_RECORDS), 503),
    **dict.fromkeys((Code.IMAGE_UNSIGNED, Code.IMAGE_WRONG_KEY), 503),
    Code.GPU_DRIVER_MISMATCH: 503,
    Code.GPU_GONE: 503,
    Code.GPU_RUNTIME_MISSING: 503,
    Code.HUB_BLOCKED: 503,
}


def refusal_for(error: Exception) -> Refusal:
    """Name why a start was turned down, or what the engine's trouble with it means."""
    if isinstance(error, Refused):
        return error.refusal
    if isinstance(error, EngineRefuses | EngineFails | EngineSaysGone):
        return refusal_of(str(error))
    return Refusal.of(Code.ENGINE_UNKNOWN)


def said(refusal: Refusal, language: Language) -> SpawnException:
    """Say a refusal."""
    return _exception(sentence(refusal, language), refusal.code.value, _STATUS.get(refusal.code, 400))


def died(end: End, language: Language) -> SpawnException:
    """Say that a server ended while somebody waited for it, and why."""
    return _exception(ended(end, language), end.code.value, 500)


def _exception(text: str, reason: str, status: int) -> SpawnException:
    error = SpawnException(text, reason=reason, status_code=status)
    error.jupyterhub_message = text  # where the hub's API and progress look for words
    return error
