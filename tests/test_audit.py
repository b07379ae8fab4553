"""Audit lines and the history are complete, and nothing that is wrong with them fails or delays a start."""

import json
import logging
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spawner.audit import AuditLog, Auditor, RecordsWriter
from spawner.auth import CampusAuthenticator
from spawner.core.exits import End, EndCode
from spawner.core.ledger import Container, to_labels
from spawner.core.model import Code, Lease, Mode, Refusal
from spawner.core.shares import Notice, NoticeCode
from spawner.docker_api import EngineUnknown
from spawner.records import PastLease, Records
from tests.core.strategies import lease
from tests.rig.waiting import wait_until_sync

KEYS = {"time", "event", "user", "server", "lease", "gpus", "code", "by"}
STOPPED = End(code=EndCode.STOPPED)


class World:
    """A hub's auditor with a database of its own; `addresses` is what the engine says."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log" / "audit.jsonl"
        self.database = folder / "records.sqlite"
        self.records = Records.open(f"sqlite:///{self.database}")
        self.addresses: dict[str, str] = {}
        self._writers: list[RecordsWriter] = []

    def auditor(self) -> Auditor:
        """A hub process begins."""
        self._writers.append(RecordsWriter(first_pause_s=0.01))
        return Auditor(AuditLog(self.path), self.records, self._writers[-1], hub="campus", network="net")

    def look(self, container: str, network: str) -> tuple[str, datetime | None]:
        assert network == "net"
        if container not in self.addresses:
            raise EngineUnknown("it hangs")
        return self.addresses[container], datetime(2026, 11, 30, 12, 1, tzinfo=UTC)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def settle(self) -> list[PastLease]:
        """The history once everything queued is written."""
        self._writers[-1].close(10)
        return sorted(self.records.history(), key=lambda past: past.lease)

    def close(self) -> None:
        for writer in self._writers:
            writer.close(0.1)
        self.records.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr("spawner.audit.look_once", made.look)
    yield made
    made.close()


def running(held: Lease, container: str = "c1") -> Container:
    return Container(id=container, name=f"n-{container}", state="running", labels=to_labels(held))


def test_a_server_s_life_is_three_lines_and_one_row(world):
    world.addresses["c1"] = "172.30.0.5"
    auditor, held = world.auditor(), lease(1, "GPU-a", node="node-1")
    auditor.granted(held)
    auditor.started(held, "c1")
    auditor.ended(held.id, STOPPED)
    auditor.ended(held.id, End(code=EndCode.GONE))
    assert [(line["event"], line["code"], line["by"]) for line in world.lines()] == [
        ("granted", "", "bob"),
        ("started", "", "bob"),
        ("ended", "stopped", ""),
    ]
    for line in world.lines():
        assert line.keys() == KEYS
        assert (line["user"], line["lease"], line["gpus"]) == ("bob", held.id, ["GPU-a"])
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
    (past,) = world.settle()
    assert (past.container, past.address, past.code, past.node) == ("c1", "172.30.0.5", "stopped", "node-1")
    assert past.started is not None
    assert past.ended is not None


def test_a_refusal_is_a_line_with_its_code(world):
    world.auditor().refused("ann", "train", Refusal.of(Code.GPUS_LEASED, asked=1))
    (line,) = world.lines()
    assert (line["event"], line["user"], line["server"], line["code"]) == ("refused", "ann", "train", "gpus-leased")
    assert line["by"] == "ann"


def test_what_the_user_of_a_share_is_told_is_a_line_too(world):
    held = lease(1, "GPU-a", "GPU-b", mode=Mode.SHARED)
    told = Notice(lease=held.id, code=NoticeCode.SHARE_ENDED, at=held.granted, params=(("pid", 41), ("used", 7)))
    world.auditor().noticed(held, told, "GPU-a")
    (line,) = world.lines()
    assert (line["event"], line["code"], line["by"]) == ("share-notice", "gpu-share-ended", "")
    assert (line["user"], line["lease"], line["gpus"]) == ("bob", held.id, ["GPU-a"])
    assert (line["pid"], line["used"]) == ("41", "7")


def test_a_quarantine_is_a_line_and_stands_in_the_history_until_the_lease_has_ended(world):
    auditor, held = world.auditor(), lease(1, "GPU-a")
    auditor.granted(held)
    auditor.quarantined(held.id, "stop: it hangs")
    assert [(line["event"], line.get("why")) for line in world.lines()][1:] == [("quarantined", "stop: it hangs")]
    line = world.lines()[1]
    assert (line["user"], line["server"], line["lease"], line["gpus"]) == (held.user, held.server, held.id, ["GPU-a"])
    (past,) = world.settle()
    assert (past.quarantine, past.ended) == ("stop: it hangs", None)


def test_a_file_that_was_moved_aside_from_outside_is_made_anew_by_the_next_line(world):
    """logrotate needs neither copytruncate nor a signal."""
    log = AuditLog(world.path)
    log.write("refused", user="ann")
    world.path.rename(world.path.with_name("audit.jsonl-20261201"))
    log.write("refused", user="bob")
    assert [line["user"] for line in world.lines()] == ["bob"]
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600


def test_the_file_is_for_its_owner_alone_and_names_cannot_forge_a_line(world, caplog):
    caplog.set_level(logging.INFO, "spawner.audit")
    AuditLog(world.path).write("refused", user='ann"}\n{"event": "granted\x1b[31m', server="学\u2028生" + "x" * 999)
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600
    assert len(world.path.read_bytes().splitlines()) == 1
    (line,) = world.lines()
    assert "\n" not in line["user"]
    assert "\x1b" not in line["user"]
    assert len(line["server"]) <= 255
    assert world.path.read_text().strip() == caplog.messages[0], "the hub's log has the same line"


def test_a_file_that_cannot_be_written_is_said_and_fails_nothing(tmp_path, caplog):
    (tmp_path / "log").touch()
    caplog.set_level(logging.INFO, "spawner.audit")
    AuditLog(tmp_path / "log" / "audit.jsonl").write("sign-in", user="ann")
    assert "is not in" in caplog.text
    assert '"user": "ann"' in caplog.text


def test_the_file_is_no_link_to_somewhere_else(tmp_path):
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    AuditLog(tmp_path / "audit.jsonl").write("sign-in", user="ann")
    assert not (tmp_path / "elsewhere").exists()


def test_a_long_file_is_moved_aside_and_many_writers_lose_no_line(tmp_path):
    path = tmp_path / "audit.jsonl"
    logs = [AuditLog(path, longest_bytes=20_000) for _ in range(4)]  # as of as many processes
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: logs[number % 4].write("refused", user=f"u{number}"), range(400)))
    files = [file for file in tmp_path.iterdir() if not file.name.endswith(".lock")]
    assert len(files) > 1
    seen = [json.loads(line)["user"] for file in files for line in file.read_text().splitlines()]
    assert sorted(seen) == sorted(f"u{number}" for number in range(400))
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())


def test_a_file_that_another_process_has_just_moved_is_not_moved_again(tmp_path, caplog):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, longest_bytes=1000)
    log._rotate(path)
    log.write("sign-in", user="ann")
    log._rotate(path)
    assert {file.name for file in tmp_path.iterdir()} == {"audit.jsonl", "audit.jsonl.lock"}
    assert not caplog.records


def test_only_so_many_old_files_are_kept(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl", longest_bytes=10)
    for number in range(30):
        log.write("refused", user=f"u{number}")
    assert len([file for file in tmp_path.iterdir() if not file.name.endswith(".lock")]) == 9
    assert '"u29"' in (tmp_path / "audit.jsonl.1").read_text()


def test_a_locked_database_delays_nothing_and_gets_everything_later(world, caplog):
    caplog.set_level(logging.INFO, "spawner.audit")
    world.addresses["c1"] = "172.30.0.5"
    auditor, held = world.auditor(), lease(1, "GPU-a")
    locked = threading.Event()
    real = world.records.lease_granted

    def fail_at_first(*arguments: Any) -> None:
        if not locked.is_set():
            raise sqlite_locked()
        real(*arguments)

    world.records.lease_granted = fail_at_first
    began = time.monotonic()
    auditor.granted(held)
    auditor.started(held, "c1")
    auditor.ended(held.id, STOPPED)
    assert time.monotonic() - began < 1
    wait_until_sync(lambda: "trying again" in caplog.text, 10, "the trouble is logged")
    assert world.records.history() == ()
    locked.set()
    wait_until_sync(lambda: "written again" in caplog.text, 10, "the trouble is over")
    (past,) = world.settle()
    assert (past.address, past.code) == ("172.30.0.5", "stopped")
    assert caplog.text.count("trying again") == 1


def sqlite_locked() -> Exception:
    from sqlalchemy.exc import OperationalError  # noqa: PLC0415 - only this test's

    return OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))


def waited(go: threading.Event) -> None:
    go.wait(20)


def test_one_write_that_can_never_work_does_not_hold_up_the_others(caplog):
    writer, done = RecordsWriter(), threading.Event()

    def bug() -> None:
        raise TypeError("a bug")

    writer.put(bug)
    writer.put(done.set)
    assert done.wait(10)
    assert "is given up" in caplog.text
    writer.close()


def test_a_queue_that_is_full_forgets_its_oldest_and_says_so_once(caplog):
    writer, go, done = RecordsWriter(most=5), threading.Event(), list[int]()
    writer.put(lambda: waited(go))
    for number in range(20):
        writer.put(lambda number=number: done.append(number))  # type: ignore[misc]
    go.set()
    writer.close(10)
    assert done == [16, 17, 18, 19]
    assert caplog.text.count("are given up") == 1


def test_a_hub_ends_although_the_database_hangs():
    writer, go = RecordsWriter(), threading.Event()
    writer.put(lambda: waited(go))
    began = time.monotonic()
    writer.close(0.1)
    assert time.monotonic() - began < 5
    go.set()


def test_after_a_restart_a_lease_without_a_row_is_filled_in_from_the_engine(world):
    world.addresses["c1"] = "172.30.0.5"
    held = lease(1, "GPU-a")
    world.auditor().repair([held, lease(2, "GPU-b", hub="other")], [running(held)])
    (past,) = world.settle()
    assert (past.lease, past.container, past.address, past.ended) == (held.id, "c1", "172.30.0.5", None)
    assert past.started == datetime(2026, 11, 30, 12, 1, tzinfo=UTC), "when the engine says that it started"


def test_after_a_restart_what_the_engine_no_longer_has_is_closed_as_gone(world):
    first = world.auditor()
    kept, lost = lease(1, "GPU-a"), replace(lease(2, "GPU-b"), server="train")
    first.granted(kept)
    first.granted(lost)
    world.settle()
    second = world.auditor()
    second.repair([kept], [running(kept)])
    ends = {past.lease: past.code for past in world.settle()}
    assert ends == {kept.id: "", lost.id: "gone"}
    assert world.lines()[-1] | {"time": ""} == {
        "time": "",
        "event": "ended",
        "user": "bob",
        "server": "train",
        "lease": lost.id,
        "gpus": ["GPU-b"],
        "code": "gone",
        "by": "",
    }


def test_later_repairs_close_nothing_and_only_fill_in(world):
    auditor, held = world.auditor(), lease(1, "GPU-a")
    auditor.repair([], [])
    auditor.granted(held)
    auditor.repair([], [])  # looked at before the reservation showed
    auditor.started(held, "c1")  # the engine does not tell the address now
    wait_until_sync(lambda: [past.container for past in world.records.history()] == ["c1"], 10)
    world.addresses["c1"] = "172.30.0.5"
    auditor.repair([held], [running(held)])
    (past,) = world.settle()
    assert (past.address, past.code) == ("172.30.0.5", "")


def test_the_end_of_a_lease_of_an_earlier_hub_is_noted_by_the_next(world):
    held = lease(1, "GPU-a")
    auditor = world.auditor()
    auditor.repair([held], [running(held)])
    auditor.ended(held.id, End(code=EndCode.OUT_OF_MEMORY))
    (past,) = world.settle()
    assert past.code == "out-of-memory"
    assert [line["event"] for line in world.lines()] == ["ended"]


@pytest.fixture
def authenticator(tmp_path: Path) -> Callable[..., CampusAuthenticator]:
    def make(**traits: Any) -> CampusAuthenticator:
        return CampusAuthenticator(audit_file=str(tmp_path / "audit.jsonl"), manage_groups=True, **traits)

    return make


async def test_sign_ins_are_lines_whether_they_succeed_or_not(authenticator, tmp_path):
    found = authenticator(allowed_groups={"students"})
    assert await found.run_post_auth_hook(None, {"name": "ann"}) == {"name": "ann"}
    assert not await found.check_allowed("bob", {"name": "bob", "groups": ["alumni"], "admin": None})
    with pytest.raises(Exception, match="cannot be used here"):
        await found.check_allowed("../x", None)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["user"], line["code"]) for line in lines] == [
        ("sign-in", "ann", "signed-in"),
        ("sign-in", "bob", "role-missing"),
        ("sign-in", "../x", "name-invalid"),
    ]


async def test_without_a_file_a_sign_in_is_in_the_log_alone(caplog):
    caplog.set_level(logging.INFO, "spawner.audit")
    await CampusAuthenticator().run_post_auth_hook(None, {"name": "ann"})
    assert '"user": "ann"' in caplog.text
