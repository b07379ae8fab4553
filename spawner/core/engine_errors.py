"""What the engine's words on a failed start mean for the person who waits.

The texts are those of runc's hooks, of NVIDIA's container toolkit and of CDI, as docs/explanation/reliability.md lists
them. A text that is not known is passed on as it is: it is for the operator, and a wrong guess would mislead.
"""

import re

from spawner.core.model import Code, Refusal
from spawner.core.names import printable

__all__ = ["refusal_of"]

_GONE = re.compile(
    r"(?:device error: (?P<hook>\S+?): unknown device"
    r"|unresolvable CDI devices (?P<cdi>[^\s\"]+)"
    r"|failed to stat CDI host device \"?(?P<host>/[^\s\"]+?)\"?(?::|$|\s)"
    r"|error gathering device information while adding custom device \"(?P<node>[^\"]+)\""
    r"|GPU is lost)"
)
_LONGEST = 300
_NO_RUNTIME = re.compile(
    r"could not select device driver|nvidia-container-cli: initialization error|failed to initialize NVML"
    r"|libnvidia-ml\.so|driver not loaded|nvidia driver is not loaded",
    re.IGNORECASE,
)


def refusal_of(text: str) -> Refusal:
    """Name what an engine's error on creating or starting a server means."""
    if "driver/library version mismatch" in text.lower():
        return Refusal.of(Code.GPU_DRIVER_MISMATCH)
    if gone := _GONE.search(text):
        named = next((name for name in gone.groups() if name), "")
        return Refusal.of(Code.GPU_GONE, gpu=printable(named.removeprefix("nvidia.com/gpu=").rstrip(",.;:"), 80) or "?")
    if _NO_RUNTIME.search(text):
        return Refusal.of(Code.GPU_RUNTIME_MISSING)
    return Refusal.of(Code.ENGINE_REFUSED, why=printable(text, _LONGEST))
