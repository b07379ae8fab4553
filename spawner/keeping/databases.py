"""The two SQLite files of a hub, JupyterHub's and ours: their versions, and a copy that is right while others write."""

import importlib.util
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from alembic.util import CommandError

from spawner import records
from spawner.keeping.files import KeepingError
from spawner.sql import migrations_in

__all__ = ["DATABASES", "HUB", "RECORDS", "Database", "Standing", "revision", "snapshot"]

SNAPSHOT_S = 60


class Standing(StrEnum):
    """How a database and this version's migrations stand to each other."""

    MISSING = "missing"  # not made yet
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"  # or nobody's: its revision is none that this version knows


@dataclass(frozen=True, slots=True)
class Database:
    """One of the two, by the name of its file in the state folder."""

    name: str
    owner: str
    scripts: Path

    def standing(self, path: Path) -> Standing:
        """Compare a file with the migrations of this version."""
        found = revision(path)
        if found is None:
            return Standing.MISSING
        known = migrations_in(self.scripts)
        if found == known.get_current_head():
            return Standing.CURRENT
        try:
            known.get_revision(found)
        except CommandError:
            return Standing.NEWER
        return Standing.OLDER

    def pending(self, path: Path) -> tuple[str, ...]:
        """What would be done to a file, in order: the first line of each migration that it lacks."""
        found = revision(path)
        if found is None or self.standing(path) is not Standing.OLDER:
            return ()
        steps = [
            step for step in migrations_in(self.scripts).iterate_revisions("head", found) if step.revision != found
        ]
        return tuple(f"{step.revision} {(step.doc or '').splitlines()[0]}".strip() for step in reversed(steps))

    def refuse_newer(self, path: Path) -> None:
        """Say in one sentence that an older checkout has met a newer database."""
        if self.standing(path) is Standing.NEWER:
            raise KeepingError(
                f"{path} has the revision {revision(path)}, which this version does not know: check out the version "
                "that wrote it, or restore a backup made before the upgrade (docs/howto/upgrade.md)"
            )


def _folder_of(package: str) -> Path:
    """The folder of a package, without the second that importing it may take."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise KeepingError(f"the package {package} is not installed: `make run` installs it")
    return Path(next(iter(found.submodule_search_locations)))


HUB = Database("hub.sqlite", "JupyterHub", _folder_of("jupyterhub") / "alembic")
RECORDS = Database("records.sqlite", "gpucampus", records.MIGRATIONS)
# JupyterHub's first: a person whom only the records know is no harm, a person without a uid would get a new one
DATABASES = (HUB, RECORDS)


def revision(path: Path) -> str | None:
    """The revision that a database says it has; None where there is none, or nothing in it yet."""
    if not path.exists():
        return None
    with _reading(path) as database:
        try:
            found = database.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                return None
            return "(none)"
    return str(found[0]) if found else "(none)"


def snapshot(source: Path, target: Path) -> None:
    """Copy a database as it is at one moment, whoever writes to it meanwhile; KeepingError where it is damaged."""
    end = time.monotonic() + SNAPSHOT_S

    def wait(_status: int, _remaining: int, _total: int) -> None:
        if time.monotonic() > end:
            raise KeepingError(f"{source} has been locked for {SNAPSHOT_S} s: look for what writes to it all the time")

    target.touch(mode=0o600, exist_ok=False)
    with _reading(source, wait_s=1) as given:
        with closing(sqlite3.connect(target)) as made:
            # all pages in one step: copied in several, it would begin anew after each write of somebody else
            given.backup(made, pages=-1, progress=wait, sleep=0.05)
        with _reading(target) as made:
            found = [row[0] for row in made.execute("PRAGMA integrity_check(3)")]
    if found != ["ok"]:
        raise KeepingError(f"{source} is damaged ({found[0]}): restore an older backup, or repair it by `sqlite3`")


@contextmanager
def _reading(path: Path, wait_s: float = 10) -> Iterator[sqlite3.Connection]:
    """Open a database to read it; what SQLite says of it is one line.

    What a killed writer has left half done beside it is taken back, as every opening of it does; that needs to write.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=wait_s)) as database:
            database.execute("PRAGMA query_only = true")
            yield database
    except sqlite3.Error as error:
        raise KeepingError(f"{path} cannot be read as a database: {error}") from error
