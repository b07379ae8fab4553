"""A hub's files in a folder, with both databases, and nothing that runs."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spawner import settings as settings_file
from spawner.keeping import backup, lock, restore
from spawner.keeping.databases import HUB, RECORDS
from spawner.records import Records
from spawner.settings import Settings
from spawner.sql import migrations_in
from tests.test_settings import LEAST

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Kept:
    """A hub that is down."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "settings.toml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def settings(self) -> Settings:
        return settings_file.load(self.path)

    def backup(self, name: str = "a.tar", *, audit: bool = False) -> Path:
        return backup.make(self.settings, self.path, self.folder / name, NOW, audit=audit).file

    def restore(self, file: Path, *, other_hub: bool = False) -> Path:
        present = self.settings if self.path.exists() else None
        with lock.alone(self.state), restore.unpacking(self.state) as folder:
            return restore.put_back(restore.open_backup(file, folder, present, other_hub=other_hub), NOW)

    def change(self) -> None:
        """Make everything another than it was."""
        for name in ("hub.sqlite", "records.sqlite"):
            with closing(sqlite3.connect(self.state / name)) as database, database:
                database.execute("insert into notes values ('later')")
        (self.state / "secrets/crypt_key").write_text("another")
        (self.state / "secrets/late_key").write_text("made later")
        (self.folder / "catalog.toml").write_text("# another\n")
        (self.folder / "client_secret").write_text("another")
        (self.folder / "campus-ca.pem").write_text("another")
        (self.folder / "config.d/10-site.py").write_text("# another\n")
        (self.folder / "config.d/20-late.py").write_text("# made later\n")
        self.path.write_text(self.path.read_text() + "# another\n")

    def content(self) -> dict[str, str]:
        """What is in everything that a backup keeps, databases as their rows."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            ours = name.startswith(
                ("settings.toml", "catalog", "client_secret", "campus-ca", "config.d/", "state/secrets/")
            )
            if path.is_file() and ours and not path.name.startswith("."):
                found[name] = path.read_text()
        for name in ("hub.sqlite", "records.sqlite"):
            if (self.state / name).exists():
                with closing(sqlite3.connect(self.state / name)) as database:
                    found[name] = str(database.execute("select * from notes").fetchall())
        return found


def make_hub(folder: Path, databases: Path) -> Kept:
    """Files of a hub in an empty folder; the databases are copied."""
    state = folder / "state"
    for path in (state / "secrets", folder / "config.d", state / "log"):
        path.mkdir(parents=True)
    secret = f'client_secret_file = "{folder}/client_secret"'
    text = LEAST.replace('client_secret_file = "/etc/gpucampus/client_secret"', secret)
    (folder / "settings.toml").write_text(
        f'state = "{state}"\ncatalog = "{folder}/catalog.toml"\nconfig_dir = "{folder}/config.d"\n{text}'
        f'[campus]\nca_file = "{folder}/campus-ca.pem"\n'
    )
    (folder / "campus-ca.pem").write_text("of the campus")
    (folder / "campus-ca.pem").chmod(0o644)
    (folder / "catalog.toml").write_text("# the list\n")
    (folder / "client_secret").write_text("of the provider")
    (folder / "config.d/10-site.py").write_text("c = 1\n")
    for name in ("crypt_key", "cookie_secret", "marker_key"):
        (state / "secrets" / name).write_text(f"the {name}")
    (state / "log/audit.jsonl").write_text('{"event": "sign-in"}\n')
    for name in ("hub.sqlite", "records.sqlite"):
        shutil.copy(databases / name, state / name)
    return Kept(folder)


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both databases with one note in each, made once."""
    state = tmp_path_factory.mktemp("databases")
    Records.open(f"sqlite:///{state}/records.sqlite").close()
    # as JupyterHub leaves it; its own schema comes in where a test is about that
    with closing(sqlite3.connect(state / "hub.sqlite")) as database, database:
        database.execute("create table alembic_version (version_num text)")
        database.execute("insert into alembic_version values (?)", (hub_head(),))
    for name in ("hub.sqlite", "records.sqlite"):
        with closing(sqlite3.connect(state / name)) as database, database:
            database.execute("create table notes (text)")
            database.execute("insert into notes values ('first')")
    return state


def hub_head() -> str:
    """JupyterHub's newest revision."""
    return str(migrations_in(HUB.scripts).get_current_head())


def our_head() -> str:
    """Our newest revision."""
    return str(migrations_in(RECORDS.scripts).get_current_head())


def set_revision(path: Path, revision: str) -> None:
    """Make a database one of another version, as far as it says."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update alembic_version set version_num = ?", (revision,))


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: what is tested here is the order of the changes."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)


@pytest.fixture
def hub(databases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """A hub that is down, with everything a backup keeps."""
    made = make_hub(tmp_path / "hub", databases)
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(made.path))
    yield made
    while lock._held:  # tests that let a hub in share this process
        os.close(lock._held.pop())
