"""SQL below the records: SQLite opened so that many may write, and a schema that only ever goes forward."""

import os
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

__all__ = ["READS", "RecordsError", "migrate", "migrations_in", "open_sqlite"]

READS = "gpucampus_reads"  # the execution option of who only reads
_BUSY_TIMEOUT_S = 10


class RecordsError(RuntimeError):
    """The database cannot be used as it is; the text is one line for the operator."""


def open_sqlite(url: sa.URL) -> sa.Engine:
    """Open SQLite with a write-ahead log; the file holds who is who, so only its owner reads it."""
    if url.database and url.database != ":memory:":
        path = Path(url.database)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_S})

    @sa.event.listens_for(engine, "connect")
    def _connect(connection: object, _record: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]  # the driver's connection; "begin" below begins
        connection.execute("PRAGMA journal_mode=WAL")  # type: ignore[attr-defined]  # the driver's connection

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # a plain BEGIN that reads and then writes fails at once where somebody wrote in between, without waiting;
        # who only reads waits for nobody
        reads = connection.get_execution_options().get(READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


@cache
def migrations_in(folder: Path) -> ScriptDirectory:
    """The migrations that a folder holds, read once."""
    return ScriptDirectory.from_config(_config(folder))


def migrate(engine: sa.Engine, folder: Path, *, upgrade: bool) -> None:
    """Make a new database, or bring an older one up to date where `upgrade` says so; RecordsError otherwise."""
    scripts = migrations_in(folder)
    with engine.begin() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
        if found == scripts.get_current_head():
            return
        try:
            if found is not None and scripts.get_revision(found) is not None and not upgrade:
                raise RecordsError("the database is older than this version: run `gpucampus upgrade`")
            config = _config(folder)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        except CommandError as error:
            raise RecordsError(f"the database is newer than this version or not ours: {error}") from error


def _config(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config
