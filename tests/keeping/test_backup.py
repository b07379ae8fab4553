"""A backup is whole or is not there, is readable by its owner only, and is right while others write."""

import io
import json
import sqlite3
import stat
import tarfile
import threading
from contextlib import closing

import pytest

from spawner.keeping import archive, backup, databases
from spawner.keeping.files import KeepingError
from tests.keeping.conftest import NOW, Kept, hub_head, our_head


def members(file):
    with tarfile.open(file, "r:") as tar:
        return tar.getnames()


def test_everything_that_cannot_be_made_again_is_in_one_private_file(hub):
    file = hub.backup()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert members(file) == [
        "manifest.json",
        "campus_ca",
        "catalog.toml",
        "client_secret",
        "config.d/10-site.py",
        "hub.sqlite",
        "records.sqlite",
        "secrets/cookie_secret",
        "secrets/crypt_key",
        "secrets/marker_key",
        "settings.toml",
    ]
    with tarfile.open(file, "r:") as tar:
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())
    assert (manifest["hub"], manifest["made"]) == ("gpucampus", "2026-11-30T12:00:00+00:00")
    assert manifest["revisions"] == {"hub.sqlite": hub_head(), "records.sqlite": our_head()}
    assert "log/audit.jsonl" in members(hub.backup("with-audit.tar", audit=True))
    assert [path.name for path in hub.folder.glob(".gpucampus-backup-*")] == [], "no draft is left"


def test_a_file_that_is_there_is_never_replaced(hub, monkeypatch):
    file = hub.folder / "a.tar"
    file.write_text("mine")
    with pytest.raises(KeepingError, match="is there already"):
        hub.backup()
    file.unlink()
    real = archive.write

    def somebody_is_faster(target, *rest):
        target.write_text("mine")
        real(target, *rest)

    monkeypatch.setattr(archive, "write", somebody_is_faster)
    with pytest.raises(KeepingError, match="is there already"):
        hub.backup()
    assert file.read_text() == "mine"


def test_a_backup_that_fails_leaves_nothing(hub, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spawner.keeping.archive.os.fsync", full)
    before = sorted(hub.folder.iterdir())
    with pytest.raises(KeepingError, match=r"no backup was made: .*No space left"):
        hub.backup()
    assert sorted(hub.folder.iterdir()) == before


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_what_is_kept_while_somebody_writes_is_one_moment_of_the_database(hub: Kept, mode: str, tmp_path):
    path = hub.state / "records.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"pragma journal_mode={mode}")
        database.execute("create table pairs (a integer, b blob)")
    stop, started = threading.Event(), threading.Event()
    trouble: list[BaseException] = []

    def write() -> None:
        try:
            with closing(sqlite3.connect(path, timeout=10)) as database:
                database.execute("pragma synchronous=off")
                number = 0
                while not stop.is_set():
                    number += 1
                    with database:  # two rows or none
                        database.execute("insert into pairs values (?, zeroblob(3000))", (number,))
                        database.execute("insert into pairs values (?, zeroblob(3000))", (-number,))
                    if number == 5:
                        started.set()
        except BaseException as error:
            trouble.append(error)
            raise

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert started.wait(10)
        for number in range(3):
            databases.snapshot(path, tmp_path / f"copy{number}")
            with closing(sqlite3.connect(tmp_path / f"copy{number}")) as copy:
                count, total = copy.execute("select count(*), sum(a) from pairs").fetchone()
            assert count >= 10
            assert (count % 2, total) == (0, 0)
    finally:
        stop.set()
        writer.join(10)
    assert trouble == []


def test_rows_that_are_only_in_the_log_of_a_killed_hub_are_kept(hub: Kept, tmp_path):
    writer = sqlite3.connect(hub.state / "records.sqlite")
    try:
        with writer:
            writer.execute("insert into notes values ('in the log')")
        assert (hub.state / "records.sqlite-wal").stat().st_size > 0
        file = hub.backup()
    finally:
        writer.close()
    with tarfile.open(file, "r:") as tar:
        (tmp_path / "copy").write_bytes((tar.extractfile("records.sqlite") or io.BytesIO()).read())
    with closing(sqlite3.connect(tmp_path / "copy")) as copy:
        assert ("in the log",) in copy.execute("select * from notes").fetchall()


@pytest.mark.parametrize("how", ["page", "index"])
def test_a_damaged_database_is_told_and_not_kept(hub, how):
    path = hub.state / "hub.sqlite"
    if how == "index":  # every page can be read, and the index says something else than the table
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("create index by_text on notes (text)")
            database.execute("insert into notes values ('needle in the table')")
        path.write_bytes(path.read_bytes().replace(b"needle", b"poodle", 1))
    else:
        content = bytearray(path.read_bytes())
        content[4096:4300] = b"\xff" * 204
        path.write_bytes(content)
    with pytest.raises(KeepingError, match=r"hub\.sqlite (is damaged|cannot be read)"):
        hub.backup()
    assert not (hub.folder / "a.tar").exists()


def test_a_database_that_stays_locked_is_told_after_a_while(hub, monkeypatch, tmp_path):
    monkeypatch.setattr(databases, "SNAPSHOT_S", 0.2)
    with closing(sqlite3.connect(hub.state / "hub.sqlite")) as writer:
        writer.execute("begin exclusive")
        with pytest.raises(KeepingError, match="locked"):
            databases.snapshot(hub.state / "hub.sqlite", tmp_path / "copy")


def test_a_hub_that_never_started_has_no_databases_and_says_so(hub):
    for name in ("hub.sqlite", "records.sqlite"):
        (hub.state / name).unlink()
    made = backup.make(hub.settings, hub.path, hub.folder / "a.tar", NOW)
    assert made.missing == ("hub.sqlite", "records.sqlite")


def test_a_name_that_no_backup_can_hold_is_told(hub):
    (hub.folder / "config.d/my site.py").write_text("")
    with pytest.raises(KeepingError, match=r"my site.py cannot be kept under its name"):
        hub.backup()
