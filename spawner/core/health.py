"""What a container's own check at its start says (`gpucampus-health` in the images), read from its last words.

Nothing here is believed of a GPU: whoever owns a server can end it with the same status and the same words. It gives
the person a sentence and has the hub look at the GPUs of the lease; what NVML says on the machine decides.
"""

import json
from enum import StrEnum

from spawner.core.names import printable

__all__ = ["DOUBTFUL", "STATUS", "HealthCode", "finding_of"]

STATUS = 90
_MARK = "gpucampus-health: "
_LONGEST = 200
_KEYS = frozenset(
    {"missing", "leased", "others", "gpus", "driver", "needed", "why", "part", "expected", "found"}
)  # what the sentences are made of


class HealthCode(StrEnum):
    """What was wrong; messages.py has a sentence for each."""

    GPU_MISSING = "health-gpu-missing"
    GPU_EXTRA = "health-gpu-extra"
    DRIVER_SILENT = "health-driver-silent"
    DRIVER_OLD = "health-driver-old"
    VERSION = "health-version"
    BROKEN = "health-broken"


DOUBTFUL = frozenset({HealthCode.GPU_MISSING, HealthCode.DRIVER_SILENT})  # the hub looks at the GPUs at once


def finding_of(words: str) -> tuple[HealthCode, tuple[tuple[str, str | int], ...]] | None:
    """Read the last line that the check wrote; None where there is none that can be read."""
    lines = [line for line in words.splitlines() if line.startswith(_MARK)]
    try:
        found = json.loads(lines[-1].removeprefix(_MARK))
        code = HealthCode(f"health-{found['code']}")
    except (IndexError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return code, tuple((key, _plain(value)) for key, value in sorted(found.items()) if key in _KEYS)


def _plain(value: object) -> str | int:
    return value if type(value) is int and 0 <= value < 1_000_000 else printable(str(value), _LONGEST)
