"""Databases are migrated after a backup, put back where that fails, and refused where they are newer."""

import json
import os
import runpy
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import orm
from sqlalchemy import create_engine

from spawner import records
from spawner.findings import Status
from spawner.keeping import databases, lock, upgrade
from spawner.keeping.files import KeepingError
from spawner.settings import ROOT
from tests.keeping.conftest import NOW, Kept, hub_head, our_head, set_revision

MIGRATION = '''"""Shoe sizes.

Revision ID: 7000
Revises: HEAD
"""
from alembic import op
import sqlalchemy as sa
revision, down_revision, branch_labels, depends_on = "7000", "HEAD", None, None
def upgrade() -> None:
    op.add_column("person", sa.Column("shoe_size", sa.Integer()))
'''
CURRENT = {"variant": "cpu", "image": "gpucampus/cpu:1", "built": True, "current": True, "jupyterhub": "6.1.1"}


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A version of our code with one migration more; its file."""
    folder = tmp_path / "migrations"
    shutil.copytree(records.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(records, "MIGRATIONS", folder)
    ours = databases.Database("records.sqlite", "gpucampus", folder)
    for module in (databases, upgrade):
        monkeypatch.setattr(module, "RECORDS", ours)
    for module in (databases, upgrade, lock):
        monkeypatch.setattr(module, "DATABASES", (databases.HUB, ours))
    monkeypatch.setattr("spawner.keeping.restore.DATABASES", (databases.HUB, ours))
    file = folder / "versions/7000_shoes.py"
    file.write_text(MIGRATION.replace("HEAD", our_head()))
    return file


def migrate(hub: Kept) -> upgrade.Upgraded:
    with lock.alone(hub.state):
        return upgrade.migrate(hub.settings, hub.path, NOW)


def columns(hub: Kept) -> list[str]:
    with closing(sqlite3.connect(hub.state / "records.sqlite")) as database:
        return [row[1] for row in database.execute("pragma table_info(person)")]


def checked(hub: Kept, images: Any = ()) -> dict[str, Any]:
    return {finding.check: finding for finding in upgrade.check(hub.settings, images)}


def test_nothing_is_done_and_nothing_kept_where_all_is_current(hub: Kept):
    assert migrate(hub) == upgrade.Upgraded(done=(), backup=None)
    assert not (hub.state / "backups").exists()
    assert {finding.status for finding in checked(hub, [CURRENT]).values()} == {Status.OK}


def test_a_pending_migration_is_told_refused_at_start_and_done_after_a_backup(hub: Kept, newer: Path):
    finding = checked(hub)["records.sqlite"]
    assert (finding.status, "7000 Shoe sizes." in finding.text) == (Status.FAIL, True)
    with pytest.raises(KeepingError, match=r"records.sqlite lacks 1 migration.*gpucampus upgrade"):
        lock.admit(hub.state)
    while lock._held:
        os.close(lock._held.pop())
    done = migrate(hub)
    assert done.done == ("records.sqlite: 7000 Shoe sizes.",)
    assert "shoe_size" in columns(hub)
    assert hub.content()["records.sqlite"] == "[('first',)]"
    assert done.backup is not None
    assert done.backup.stat().st_mode & 0o777 == 0o600
    hub.restore(done.backup)
    assert "shoe_size" not in columns(hub), "the backup is from before"
    assert not (hub.state / lock.UPGRADE).exists()


def test_a_migration_that_fails_puts_both_databases_back(hub: Kept, newer: Path, monkeypatch):
    real = upgrade._migrate_records

    def half(path: Path) -> None:
        real(path)
        with closing(sqlite3.connect(hub.state / "hub.sqlite")) as database, database:
            database.execute("delete from notes")
        raise KeepingError("table users has no column shoe_size")

    monkeypatch.setattr(upgrade, "_migrate_records", half)
    before = hub.content()
    with pytest.raises(KeepingError, match=r"as before: table users has no column shoe_size; .*before-upgrade"):
        migrate(hub)
    assert hub.content() == before
    assert "shoe_size" not in columns(hub)
    assert not (hub.state / lock.UPGRADE).exists()


def test_a_migration_of_ours_that_raises_is_one_sentence_and_changes_nothing(hub: Kept, newer: Path):
    newer.write_text(newer.read_text() + '    op.execute("insert into nowhere values (1)")\n')
    before = hub.content()
    with pytest.raises(KeepingError, match=r"both databases are as before: .*no such table: nowhere"):
        migrate(hub)
    assert hub.content() == before
    assert "shoe_size" not in columns(hub)


def test_an_upgrade_that_was_killed_begins_from_the_backup(hub: Kept, newer: Path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("alter table person add column shoe_size integer")  # half of a migration
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(upgrade, "_migrate_records", killed)
        with pytest.raises(Killed):
            migrate(hub)
    assert checked(hub)["upgrade"].status is Status.FAIL
    with pytest.raises(KeepingError, match=r"an upgrade of .* broke off"):
        lock.admit(hub.state)
    while lock._held:
        os.close(lock._held.pop())
    assert migrate(hub).done == ("records.sqlite: 7000 Shoe sizes.",)
    assert columns(hub).count("shoe_size") == 1


def test_a_newer_database_met_by_older_code_is_one_sentence_everywhere(hub: Kept):
    for name, was in (("hub.sqlite", hub_head()), ("records.sqlite", our_head())):
        set_revision(hub.state / name, "9999")
        assert checked(hub)[name].status is Status.FAIL
        said = f"{name} has the revision 9999, which this version does not know: check out the version"
        with pytest.raises(KeepingError, match=said):
            lock.admit(hub.state)
        while lock._held:
            os.close(lock._held.pop())
        with pytest.raises(KeepingError, match=said):
            migrate(hub)
        set_revision(hub.state / name, was)
    set_revision(hub.state / "records.sqlite", "9999")
    with pytest.raises(records.RecordsError, match="newer than this version"):
        records.Records.open(f"sqlite:///{hub.state}/records.sqlite", upgrade=True)


def test_a_hub_that_meets_a_newer_database_says_one_sentence_and_no_traceback(hub: Kept):
    set_revision(hub.state / "records.sqlite", "9999")
    with pytest.raises(SystemExit) as said:
        runpy.run_path(str(ROOT / "jupyterhub_config.py"))
    assert str(said.value).startswith(
        f"gpucampus: {hub.state}/records.sqlite has the revision 9999, which this version"
    )
    assert "\n" not in str(said.value)


def test_a_restore_is_the_last_word_over_an_upgrade_that_broke_off(hub: Kept):
    file, old = hub.backup(), hub.content()
    (hub.state / "backups").mkdir()
    (hub.state / lock.UPGRADE).write_text(json.dumps({"backup": "another.tar"}))
    with pytest.raises(KeepingError, match="an upgrade of"), lock.beside(hub.state):
        pass
    hub.change()
    hub.restore(file)
    assert hub.content() == old
    lock.admit(hub.state)


@pytest.mark.hub  # it starts JupyterHub, for a moment
def test_jupyterhubs_own_migrations_run_without_its_configuration(hub: Kept, monkeypatch, tmp_path):
    path = hub.state / "hub.sqlite"
    path.unlink()
    engine = create_engine(f"sqlite:///{path}")
    orm.Base.metadata.create_all(engine)
    with engine.begin() as connection:  # as JupyterHub 5.2 left it
        connection.exec_driver_sql("alter table spawners drop column display_name")
        connection.exec_driver_sql("create table alembic_version (version_num varchar(32) not null)")
        connection.exec_driver_sql("insert into alembic_version values ('ff1860e38070')")
        connection.exec_driver_sql("create table notes (text)")
    engine.dispose()
    for folder in (hub.state, tmp_path):
        (folder / "jupyterhub_config.py").write_text("raise SystemExit('no configuration is wanted here')")
    monkeypatch.chdir(tmp_path)
    done = migrate(hub)
    assert [step.split()[0:2] for step in done.done] == [["hub.sqlite:", "f460b0348206"]]
    with closing(sqlite3.connect(path)) as database:
        assert "display_name" in [row[1] for row in database.execute("pragma table_info(spawners)")]
        database.execute("insert into notes values ('x')")


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, Status.OK, "is current"),
        ({"built": False, "current": False}, Status.WARN, "is not built"),
        ({"current": False}, Status.WARN, "built from other files"),
        ({"jupyterhub": "6.1.7"}, Status.OK, "is current"),
        ({"jupyterhub": "6.0.9"}, Status.FAIL, "has JupyterHub 6.0.9, and the hub is 6.1"),
        ({"jupyterhub": "5.3.0", "current": False}, Status.FAIL, "has JupyterHub 5.3.0"),
        ({"jupyterhub": ""}, Status.FAIL, "unknown version"),
    ],
)
def test_an_image_with_another_jupyterhub_is_refused_with_the_command_that_builds_it(hub, changes, status, said):
    finding = checked(hub, [CURRENT | changes])["image cpu"]
    assert (finding.status, said in finding.text) == (status, True), finding
    if status is not Status.OK:
        assert "make images" in finding.remedy


def test_an_engine_that_does_not_answer_is_a_finding(hub, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{hub.folder}/none.sock")
    looked = upgrade.look_at_images()
    assert isinstance(looked, str)
    assert "Traceback" not in looked
    assert checked(hub, looked)["images"].status is Status.FAIL


def test_a_note_of_an_upgrade_names_a_file_in_its_own_folder_only(hub: Kept):
    (hub.state / "backups").mkdir()
    (hub.state / lock.UPGRADE).write_text(json.dumps({"backup": "../../elsewhere.tar"}))
    with pytest.raises(KeepingError, match=r"backups/elsewhere.tar is not there"):
        migrate(hub)


def test_a_database_whose_writer_was_killed_in_a_transaction_is_read_as_it_was_before(hub: Kept, tmp_path):
    before = databases.HUB.standing(hub.state / "hub.sqlite")
    killed = tmp_path / "hub.sqlite"
    with closing(sqlite3.connect(hub.state / "hub.sqlite", isolation_level=None)) as writer:
        # pages that do not fit into the cache are written before the end, so that the journal is needed afterwards
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE alembic_version SET version_num = 'half'")
        writer.execute("CREATE TABLE large (text)")
        writer.executemany("INSERT INTO large VALUES (?)", [("x" * 4000,)] * 50)
        for suffix in ("", "-journal"):
            shutil.copyfile(hub.state / f"hub.sqlite{suffix}", f"{killed}{suffix}")
        writer.execute("ROLLBACK")
    assert Path(f"{killed}-journal").stat().st_size > 512
    assert databases.HUB.standing(killed) is before is databases.Standing.CURRENT
