"""Who did what, when: audit lines, and the history of leases in SQL.

- Nothing here fails or delays a start. A line is one small append to a local file, as the hub's own log lines are.
  SQL and the question for a container's address wait in a queue that one thread works off.
- A database in trouble is asked again until it answers; meanwhile the queue grows to its limit and then forgets its
  oldest. `repair` fills in from the engine's labels what is missing.
- The command line and the hub write to one file at once: each line is one append, and whoever finds the file too long
  moves it aside.
"""

import errno
import fcntl
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from spawner.core.exits import End, EndCode
from spawner.core.ledger import LABEL, Container
from spawner.core.model import Lease, Refusal
from spawner.core.names import printable
from spawner.core.shares import Notice
from spawner.docker_api import EngineRefuses, EngineSaysGone, EngineUnknown, look_once
from spawner.records import TROUBLE, Records

__all__ = ["AuditLog", "Auditor", "Observer", "RecordsWriter", "Unobserved"]

LOG = logging.getLogger(__name__)
LONGEST_BYTES = 10_000_000
KEPT_FILES = 9
MOST_JOBS = 10_000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
_LONGEST_WORD = 255
_ENGINE_TROUBLE = (EngineUnknown, EngineRefuses, EngineSaysGone)


class Observer(Protocol):
    """Is told what becomes of claims and leases. No method may raise or wait."""

    def granted(self, lease: Lease) -> None:
        """Note that a claim was placed and reserved."""

    def started(self, lease: Lease, container: str) -> None:
        """Note that the container of a lease runs."""

    def ended(self, lease_id: str, end: End) -> None:
        """Note that nothing of a lease is left; may come twice."""

    def quarantined(self, lease_id: str, why: str) -> None:
        """Note that the engine was told to end a lease and did not; `why` are its words."""

    def refused(self, user: str, server: str, refusal: Refusal) -> None:
        """Note that a start was turned down."""


class Unobserved:
    """An observer that notes nothing."""

    def granted(self, lease: Lease) -> None:
        """Do nothing."""

    def started(self, lease: Lease, container: str) -> None:
        """Do nothing."""

    def ended(self, lease_id: str, end: End) -> None:
        """Do nothing."""

    def quarantined(self, lease_id: str, why: str) -> None:
        """Do nothing."""

    def refused(self, user: str, server: str, refusal: Refusal) -> None:
        """Do nothing."""


class AuditLog:
    """Audit lines: JSON, one object a line, to the hub's log and, if there is a path, to a file for its owner alone."""

    def __init__(self, path: Path | None, *, longest_bytes: int = LONGEST_BYTES) -> None:
        self._path = path
        self._longest = longest_bytes

    def write(
        self,
        event: str,
        *,
        user: str = "",
        server: str = "",
        lease: str = "",
        gpus: Sequence[str] = (),
        code: str = "",
        by: str = "",
        **more: str,
    ) -> None:
        """Write a line. Never raises: what cannot be written to the file is still in the log."""
        words = {"event": event, "user": user, "server": server, "lease": lease, "code": code, "by": by, **more}
        shown = {key: printable(word, _LONGEST_WORD) for key, word in words.items()}
        uuids = [printable(uuid, _LONGEST_WORD) for uuid in gpus]
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **shown, "gpus": uuids})
        LOG.info("%s", line)
        if self._path is None:
            return
        try:
            self._append(self._path, line.encode("ascii") + b"\n")
        except OSError as error:
            LOG.error("the audit line above is not in %s: %s", self._path, error.strerror)  # noqa: TRY400 - no bug

    def _append(self, path: Path, line: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            if os.write(file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            too_long = os.fstat(file).st_size > self._longest
        finally:
            os.close(file)
        if too_long:
            self._rotate(path)

    def _rotate(self, path: Path) -> None:
        """Move the file aside; where another process does so at this moment, it is left to that one."""
        lock = os.open(f"{path}.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_size > self._longest:
                for number in range(KEPT_FILES, 0, -1):
                    older = Path(f"{path}.{number - 1}") if number > 1 else path
                    if older.exists():
                        older.replace(f"{path}.{number}")
        except (BlockingIOError, FileNotFoundError):  # the other one is at it, or has just done it
            return
        finally:
            os.close(lock)


class RecordsWriter:
    """One thread that works off writes to the database, in their order."""

    def __init__(self, *, most: int = MOST_JOBS, first_pause_s: float = FIRST_PAUSE_S) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._most = most
        self._first_pause_s = first_pause_s
        self._changed = threading.Condition()
        self._closing = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="records-writer", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Queue a write, without waiting. It may be tried more than once."""
        with self._changed:
            if len(self._jobs) >= self._most:
                # not the first: the thread may be at it
                del self._jobs[1]
                self._dropped += 1
                if self._dropped == 1:
                    LOG.error("the records cannot be written and %d writes wait: the oldest are given up", self._most)
            self._jobs.append(job)
            self._changed.notify()

    def close(self, limit_s: float = 2.0) -> None:
        """Work off what waits, as far as the limit allows, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        if left := len(self._jobs):
            LOG.warning("%d writes to the records were not made; the next start repairs what matters", left)

    def _work(self) -> None:
        pause = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                job = self._jobs[0]
            try:
                job()
            except TROUBLE as error:
                if not pause:
                    LOG.warning("the records cannot be written, trying again until they can: %s", _first_line(error))
                pause = min(pause * 2 or self._first_pause_s, LONGEST_PAUSE_S)
                with self._changed:
                    if self._closing or self._changed.wait_for(lambda: self._closing, pause):
                        return
                continue
            except Exception:  # one bad write must not hold up all that follow
                LOG.exception("a write to the records failed and is given up")
            if pause:
                LOG.info("the records are written again")
                pause = self._dropped = 0
            with self._changed:
                self._jobs.popleft()


class Auditor:
    """The observer of a hub's arbiter.

    Parameters
    ----------
    log, records, writer
        Where lines and rows go, and the thread that writes the rows.
    hub
        The hub's name; leases of others are not noted.
    network
        The bridge whose addresses are noted.
    """

    def __init__(
        self,
        log: AuditLog,
        records: Records,
        writer: RecordsWriter,
        *,
        hub: str,
        network: str,
    ) -> None:
        self._log = log
        self._records = records
        self._writer = writer
        self._hub = hub
        self._network = network
        self._open: dict[str, Lease] = {}
        self._repaired = False

    def granted(self, lease: Lease) -> None:
        """Note that a claim was placed and reserved."""
        self._open[lease.id] = lease
        self._line("granted", lease, by=lease.user)
        self._writer.put(partial(self._records.lease_granted, lease))

    def started(self, lease: Lease, container: str) -> None:
        """Note that the container of a lease runs."""
        self._line("started", lease, by=lease.user)
        self._writer.put(partial(self._note_start, lease.id, container, datetime.now(UTC)))

    def ended(self, lease_id: str, end: End) -> None:
        """Note that nothing of a lease is left; the second time nothing is noted."""
        if (lease := self._open.pop(lease_id, None)) is not None:
            self._line("ended", lease, code=end.code.value)
            self._writer.put(partial(self._records.lease_ended, lease_id, end.code.value, datetime.now(UTC)))

    def quarantined(self, lease_id: str, why: str) -> None:
        """Note that the engine was told to end a lease and did not: the next hub process goes on with its removal."""
        if (lease := self._open.get(lease_id)) is not None:
            who = {"user": lease.user, "server": lease.server, "lease": lease.id}
            self._log.write("quarantined", **who, gpus=lease.gpus, why=why)
        self._writer.put(partial(self._records.lease_quarantined, lease_id, why))

    def refused(self, user: str, server: str, refusal: Refusal) -> None:
        """Note that a start was turned down."""
        self._log.write("refused", user=user, server=server, code=refusal.code.value, by=user)

    def noticed(self, lease: Lease, notice: Notice, gpu: str) -> None:
        """Note what the user of a server is told while it runs."""
        params = {key: str(value) for key, value in notice.params}
        who = {"user": lease.user, "server": lease.server, "lease": lease.id}
        self._log.write("share-notice", **who, gpus=(gpu,), code=notice.code.value, **params)

    def forget(self, before: datetime) -> None:
        """Delete the part of the history that ended before a time, soon."""
        self._writer.put(partial(self._forget, before))

    def _forget(self, before: datetime) -> None:
        if number := self._records.forget_leases(before):
            LOG.info("%d leases that ended before %s are deleted from the history", number, before.date())

    def repair(self, leases: Iterable[Lease], containers: Iterable[Container]) -> None:
        """Fill in what the history lacks, from what is leased now; the engine must have answered.

        The first call also closes what an earlier life of the hub left open and the engine no longer has.
        """
        ours = {lease.id: lease for lease in leases if lease.hub == self._hub}
        for lease in ours.values():
            self._open.setdefault(lease.id, lease)
        running = {
            container.labels.get(LABEL + "lease", ""): container.id
            for container in containers
            if container.state in ("running", "paused")
        }
        close, self._repaired = not self._repaired, True
        self._writer.put(partial(self._repair, ours, running, close=close))

    def _repair(self, leases: dict[str, Lease], running: dict[str, str], *, close: bool) -> None:
        """In the writer's thread, so after every write that was queued before the leases were looked at."""
        noted = {past.lease: past for past in self._records.open_leases(self._hub)}
        for lease_id, lease in leases.items():
            if lease_id not in noted:
                self._records.lease_granted(lease)
            past, container = noted.get(lease_id), running.get(lease_id)
            if container and not (past and past.address):
                self._note_start(lease_id, container, None)
        for lease_id in noted.keys() - leases.keys() if close else ():
            past = noted[lease_id]
            self._records.lease_ended(lease_id, EndCode.GONE.value, datetime.now(UTC))
            self._log.write(
                "ended", user=past.user, server=past.server, lease=lease_id, gpus=past.gpus, code=EndCode.GONE.value
            )

    def _note_start(self, lease_id: str, container: str, when: datetime | None) -> None:
        try:
            address, started = look_once(container, self._network)
        except _ENGINE_TROUBLE:
            address, started = "", None  # a later repair asks again
        if when or started:
            self._records.lease_started(lease_id, container, address, when or started or datetime.now(UTC))

    def _line(self, event: str, lease: Lease, *, code: str = "", by: str = "") -> None:
        self._log.write(event, user=lease.user, server=lease.server, lease=lease.id, gpus=lease.gpus, code=code, by=by)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
