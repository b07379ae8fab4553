"""Who works with a state folder: any number of hubs' processes, or one command that replaces its files.

The kernel keeps the lock and lets it go with the process, however that ends; a program that the hub starts does not
inherit it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spawner.keeping.databases import DATABASES
from spawner.keeping.files import KeepingError, folder

__all__ = ["RESTORE", "UPGRADE", "KeepingError", "admit", "alone", "beside", "broken_off"]

RESTORE, UPGRADE = "restore.json", "upgrade.json"  # notes of work that is not finished
_held: list[int] = []  # for as long as the process lives


def admit(state: Path) -> None:
    """Let the hub in, and note that it uses this state; KeepingError where it must not start with it."""
    _held.append(_shared(state))
    for database in DATABASES:
        path = state / database.name
        database.refuse_newer(path)
        if steps := database.pending(path):
            raise KeepingError(
                f"{path} lacks {len(steps)} migration(s) of this version: run `gpucampus upgrade`, which makes a "
                "backup first"
            )


def broken_off(state: Path) -> list[tuple[str, str]]:
    """What is not finished in a state folder, and the command that goes on with it."""
    notes = ((RESTORE, "a restore", "gpucampus restore"), (UPGRADE, "an upgrade", "gpucampus upgrade"))
    return [(what, command) for note, what, command in notes if (state / note).exists()]


@contextmanager
def beside(state: Path) -> Iterator[None]:
    """Read files that nobody replaces meanwhile, whether or not the hub runs."""
    held = _shared(state)
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Keep the hub out while files are replaced; KeepingError where it runs."""
    folder(state)
    held = _take(
        state, fcntl.LOCK_EX, f"a hub (or another restore or upgrade) works with {state}: end it first; servers go on"
    )
    try:
        yield
    finally:
        os.close(held)


def _shared(state: Path) -> int:
    held = _take(state, fcntl.LOCK_SH, f"a restore or an upgrade is at work with {state}: wait for its end")
    for what, command in broken_off(state):
        os.close(held)
        raise KeepingError(f"{what} of {state} broke off: run `{command}`, which goes on from there")
    return held


def _take(state: Path, how: int, otherwise: str) -> int:
    path = state / "run" / "in-use.lock"
    folder(path.parent)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise KeepingError(otherwise) from error
    return file
