"""Runs inside a container: prints the GPU nodes there, what opening each GPU's number gives, and what NVML lists."""

import errno
import json
import os
from pathlib import Path

import pynvml

GPU_NUMBERS, MAJOR = range(4), 195


def nodes() -> list[str]:
    """The names below /dev that are a GPU's."""
    found = (path for folder in ("/dev", "/dev/nvidia-caps") for path in Path(folder).glob("nvidia*"))
    return sorted(str(path.relative_to("/dev")) for path in found if path.is_char_device())


def opened(minor: int) -> str:
    """The error of opening a GPU by a node made here; without root the node cannot be made at all."""
    path = f"/tmp/gpu{minor}"
    try:
        os.mknod(path, 0o20666, os.makedev(MAJOR, minor))
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "opened"


def listed() -> object:
    """The UUIDs of what can be computed on: GPUs, or the MIG instances of a split one."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_LibraryNotFound):
        return "Driver Not Loaded or no library"
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        parts = []
        for part in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                parts.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, part))
            except pynvml.NVMLError_NotFound:
                break
        found += [pynvml.nvmlDeviceGetUUID(device) for device in parts or [gpu]]
    return sorted(found)


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "nodes": nodes(),
                "opened": {minor: opened(minor) for minor in GPU_NUMBERS},
                "nvml": listed(),
                "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES"),
            }
        )
    )
