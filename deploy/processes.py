"""Programs that outlive the command that started them: the proxy, the sign-in, an engine without systemd.

A pid file holds more than a number: the time that the kernel started the process at, and the boot. A pid that has been
given to another process since is therefore never taken for ours, and never killed.
"""

import json
import os
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path

from deploy.steps import ROOT, Problem

__all__ = ["Program", "Running", "answers", "read", "record", "start", "stop", "tail", "wait_until"]

LOG_KEPT_BYTES = 10 << 20
START_S = 30
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One process as its pid file tells it."""

    pid: int
    started: int  # clock ticks since boot
    boot: str
    command: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == _BOOT.read_text().strip() and _started(self.pid) == self.started


def _started(pid: int) -> int | None:
    """When the kernel started the process; None where there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that shall run, and go on when the command that started it ends."""

    what: str  # as it is called in a sentence
    pid_file: str
    command: tuple[str, ...]
    env: Mapping[str, str]

    def ensure(self, state: Path, address: str, headers: Mapping[str, str] | None = None) -> str:
        """Start it unless the very same runs and answers at the address with 200; return a word about it."""
        file, log = state / "run" / self.pid_file, state / "log" / f"{Path(self.pid_file).stem}.log"

        def ready() -> bool:
            return answers(address, headers=headers) == HTTPStatus.OK

        running = read(file)
        if running is not None and running.command == self.command and ready():
            return "runs already"
        stop(file)
        if answers(address):
            raise Problem(f"{self.what} cannot start: another program answers at {address}. End that first.")
        started = start(file, self.command, log=log, env=self.env)
        wait_until(ready, what=self.what, running=lambda: started.alive, log=log, limit_s=START_S)
        return "" if running is None else "started again"


def read(file: Path) -> Running | None:
    """The process of a pid file while it runs; None otherwise, whatever the file holds."""
    try:
        values = json.loads(file.read_text())
        running = Running(**(values | {"command": tuple(values["command"])}))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return running if running.alive else None


def record(file: Path, pid: int, command: Sequence[str]) -> Running:
    """Write the pid file of a process that runs."""
    running = Running(pid=pid, started=_started(pid) or 0, boot=_BOOT.read_text().strip(), command=tuple(command))
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(running)))
    partial.replace(file)
    return running


def start(file: Path, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str]) -> Running:
    """Start a program in a session of its own, so that a Ctrl-C in the terminal does not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_KEPT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    words = [str(word) for word in command]
    with log.open("ab") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=env, cwd=ROOT
        )
    return record(file, process.pid, words)


def stop(file: Path, *, patience_s: float = 10) -> bool:
    """End the process of a pid file; True where one ran."""
    running = read(file)
    if running is not None:
        _end(running, patience_s)
    file.unlink(missing_ok=True)
    return running is not None


def _end(running: Running, patience_s: float) -> None:
    try:
        handle = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    try:
        # the handle names one process for good; it is ours if the pid still was when it was opened
        if not running.alive:
            return
        for sent, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
            signal.pidfd_send_signal(handle, sent)
            if select.select([handle], [], [], wait_s)[0]:
                return
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def answers(url: str, *, headers: Mapping[str, str] | None = None) -> int:
    """The status that a local address answers with; 0 where nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        # the callers' addresses are http on this machine
        with opener.open(urllib.request.Request(url, headers=dict(headers or {})), timeout=3) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_until(check: Callable[[], bool], *, what: str, running: Callable[[], bool], log: Path, limit_s: float) -> None:
    """Wait for a program to be ready; Problem shows its log where it ends first or takes too long."""
    end = time.monotonic() + limit_s
    while not check():
        if not running():
            raise Problem(f"{what} ended as it started; its log {log} says:\n{tail(log)}")
        if time.monotonic() > end:
            raise Problem(f"{what} did not answer within {limit_s:.0f} s; its log {log} says:\n{tail(log)}")
        time.sleep(0.1)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(there is no log)"
