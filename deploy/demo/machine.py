"""What this machine has of NVIDIA: decides whether the demo's GPUs are real or simulated."""

import shutil
from enum import Enum
from pathlib import Path

__all__ = ["GPUKind", "MachineError", "gpu_kind"]

NVIDIA, DISPLAY = "0x10de", "0x03"
HOOK = "nvidia-container-runtime-hook"
GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"


class MachineError(RuntimeError):
    """The demo cannot run on this machine as it is; the text is one sentence with the remedy."""


class GPUKind(Enum):
    """Which GPUs the demo hands out."""

    REAL = "real"
    SIMULATED = "simulated"


def gpu_kind(root: Path = Path("/"), path: str | None = None) -> GPUKind:
    """Tell which GPUs to use. A real GPU is never hidden behind simulated ones: MachineError says what it lacks.

    `root` and `path` stand in for the machine's files and its PATH.
    """
    driver = any((root / "proc/driver/nvidia/gpus").glob("*"))
    if not driver and not _on_the_bus(root):
        return GPUKind.SIMULATED
    if not driver:
        raise MachineError(
            "This machine has an NVIDIA GPU, but NVIDIA's driver is not loaded, so nothing can compute on it: install "
            "the driver (version 525 or newer), restart the machine, and run this again."
        )
    if shutil.which(HOOK, path=path) is None:
        raise MachineError(
            "This machine has an NVIDIA GPU, but no NVIDIA Container Toolkit, so containers cannot get it: install the "
            f"toolkit ({GUIDE}), restart Docker, and run this again."
        )
    return GPUKind.REAL


def _on_the_bus(root: Path) -> bool:
    def text(path: Path) -> str:
        try:
            return path.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    return any(
        text(device / "vendor") == NVIDIA and text(device / "class").startswith(DISPLAY)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )
