"""The GPUs that this container sees, asked from NVIDIA's library with the standard library alone."""

import ctypes
import re
from dataclasses import dataclass

__all__ = ["LIBRARY", "DriverError", "Seen", "look", "older"]

LIBRARY = "libnvidia-ml.so.1"
_NO_DRIVER, _NO_LIBRARY = 9, 12
_TEXT = 96


class DriverError(RuntimeError):
    """The driver cannot be asked; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is there: UUIDs of whole GPUs, of split GPUs their MIG instances; GPUs that fail are counted only."""

    driver: str
    uuids: tuple[str, ...]
    failing: int = 0


def look(library: str = LIBRARY) -> Seen | None:
    """Ask; None where this container has neither library nor driver, DriverError where they are there and fail."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return None
    status = nvml.nvmlInit_v2()
    if status in (_NO_DRIVER, _NO_LIBRARY):
        return None
    if status:
        raise DriverError(_words(nvml, status))
    try:
        return _read(nvml)
    finally:
        nvml.nvmlShutdown()


def older(version: str, least: str) -> bool:
    """Whether a driver's version is below another, number by number: 525.60 is below 525.105."""

    def parts(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)]

    return parts(version) < parts(least)


def _read(nvml: ctypes.CDLL) -> Seen:
    driver, count = ctypes.create_string_buffer(_TEXT), ctypes.c_uint()
    for status in (nvml.nvmlSystemGetDriverVersion(driver, _TEXT), nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))):
        if status:
            raise DriverError(_words(nvml, status))
    uuids: list[str] = []
    failing = 0
    for index in range(count.value):
        handle = ctypes.c_void_p()
        uuid = "" if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) else _uuid(nvml, handle)
        failing += not uuid
        if uuid:
            uuids += _instances(nvml, handle) if _is_split(nvml, handle) else [uuid]
    return Seen(driver=driver.value.decode(errors="replace"), uuids=tuple(uuids), failing=failing)


def _uuid(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(_TEXT)
    return "" if nvml.nvmlDeviceGetUUID(handle, text, _TEXT) else text.value.decode(errors="replace")


def _is_split(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> bool:
    """Whether MIG is on; GPUs and drivers that do not know it answer with an error."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    try:
        failed = nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(later))
    except AttributeError:  # a driver from before MIG
        return False
    return not failed and now.value == 1


def _instances(nvml: ctypes.CDLL, parent: ctypes.c_void_p) -> list[str]:
    """The instances that can be used here; the places between them may be empty."""
    most = ctypes.c_uint()
    nvml.nvmlDeviceGetMaxMigDeviceCount(parent, ctypes.byref(most))
    found = []
    for place in range(most.value):
        handle = ctypes.c_void_p()
        if not nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, place, ctypes.byref(handle)):
            found.append(_uuid(nvml, handle))
    return [uuid for uuid in found if uuid]


def _words(nvml: ctypes.CDLL, status: int) -> str:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    return f"{nvml.nvmlErrorString(status).decode(errors='replace')} (status {status})"
