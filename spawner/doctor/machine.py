"""What the checks look at: a machine, given as values and a root folder, so that a tree of files can stand for one."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from spawner.findings import Finding, Status
from spawner.nvml import Inventory, InventoryFailure
from spawner.settings import Settings

__all__ = ["Check", "EngineFacts", "Later", "Machine", "NotLookedAtError", "fail", "ok", "warn"]

T = TypeVar("T")
AGAIN = "gpucampus doctor, once that is mended"


class NotLookedAtError(Exception):
    """A check cannot be made because of what has a finding of its own; `why` is what that finding says more."""

    def __init__(self, because: str, why: str = "") -> None:
        super().__init__(because)
        self.why = why


class Later(Generic[T]):
    """A value that several checks need, asked for once and beside them, since it may never come."""

    def __init__(self, ask: Callable[[], T], *, missing: str, limit_s: float = 12.0) -> None:
        self._ask = ask
        self._missing = missing
        self._limit_s = limit_s
        self._future: Future[T] | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """Give the value; NotLookedAtError where it does not come in time or asking for it fails."""
        with self._lock:
            if self._future is None:
                self._future = Future()
                threading.Thread(target=self._work, args=(self._future,), daemon=True).start()
        try:
            return self._future.result(self._limit_s)
        except TimeoutError:
            raise NotLookedAtError(self._missing, f"nothing was said within {self._limit_s:g} s") from None
        except Exception as error:
            raise NotLookedAtError(self._missing, str(error)) from error

    def _work(self, future: Future[T]) -> None:
        try:
            future.set_result(self._ask())
        except Exception as error:  # noqa: BLE001 - it is told to whoever asks for the value
            future.set_exception(error)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the container engine says of itself, in its own words."""

    version: Mapping[str, Any]
    info: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine. `settings` is None where they cannot be used; `trouble` then says why."""

    engine: Later[EngineFacts]
    gpus: Later[Inventory | InventoryFailure]
    root: Path = Path("/")
    settings: Settings | None = None
    trouble: str = ""
    settings_path: Path = Path("settings.toml")

    @property
    def set(self) -> Settings:
        """The settings, for the checks that are made only where there are some."""
        assert self.settings is not None  # noqa: S101 - the runner leaves those checks out otherwise
        return self.settings

    def path(self, absolute: str | Path) -> Path:
        """A path of this machine."""
        return self.root / str(absolute).lstrip("/")

    def read(self, absolute: str | Path) -> str:
        """The text of a file; empty where there is none or it cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def real_gpus(self) -> bool:
        """Whether an NVIDIA GPU is in this machine, by the PCI bus or by the driver's nodes."""
        bus = "/sys/bus/pci/devices"
        for device in self.path(bus).glob("*"):
            vendor, kind = (self.read(f"{bus}/{device.name}/{name}") for name in ("vendor", "class"))
            if vendor.strip() == "0x10de" and kind.startswith("0x03"):
                return True
        return any(self.path("/dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing to look at.

    Attributes
    ----------
    name
        What the findings' names begin with.
    look
        Looks, and gives what it found.
    hangs
        What to do where it does not come back in time.
    needs_settings
        Whether it is left out while the settings cannot be used.
    limit_s
        How long it may take.
    """

    name: str
    look: Callable[[Machine], Iterable[Finding]]
    hangs: str
    needs_settings: bool = True
    limit_s: float = 30.0


def ok(check: str, text: str) -> Finding:
    """Say that something is as it should be."""
    return Finding(check, Status.OK, text)


def warn(check: str, text: str, remedy: str) -> Finding:
    """Say that something may become trouble."""
    return Finding(check, Status.WARN, text, remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    """Say that something is broken."""
    return Finding(check, Status.FAIL, text, remedy)
