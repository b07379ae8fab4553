"""Changes to files that are on the disk when the call returns; all of restore and upgrade goes through these few."""

import os
import shutil
from pathlib import Path

__all__ = ["AUXILIARY", "KeepingError", "copy", "folder", "free", "move", "remove", "write"]

AUXILIARY = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a database; beside another one it is poison


class KeepingError(RuntimeError):
    """It cannot be done; the text says in one line what, why, and what to do. Nothing was changed, or it says what."""


def folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder, and those above it, unless it is there."""
    missing = [above for above in (path, *path.parents) if not above.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in reversed(missing):
        _sync(made.parent)


def free(path: Path) -> Path:
    """Give the path, or the first like it that is not taken."""
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(2, 10_000))
    return path if not path.exists() else next(one for one in numbered if not one.exists())


def copy(source: Path, target: Path, *, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Copy a file to where none is, seen by nobody else meanwhile."""
    with source.open("rb") as given, os.fdopen(os.open(target, _NEW, 0o600), "wb") as made:
        shutil.copyfileobj(given, made)
        _settle(made.fileno(), mode, owner)
    _sync(target.parent)


def write(path: Path, text: str, *, mode: int = 0o600, owner: tuple[int, int] | None = None) -> None:
    """Replace a file by a text, as a whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, _NEW, 0o600), "w", encoding="utf-8", newline="") as made:
        made.write(text)
        made.flush()
        _settle(made.fileno(), mode, owner)
    move(draft, path)


def move(source: Path, target: Path) -> None:
    """Put a file in another's place in the same folder; a database's log and journal go first."""
    if target.suffix == ".sqlite":
        for ending in AUXILIARY:
            target.with_name(target.name + ending).unlink(missing_ok=True)
        _sync(target.parent)
    source.replace(target)
    _sync(target.parent)


def remove(path: Path) -> None:
    """Remove a file, of a database first what belongs to it: where the file is gone, nothing is left."""
    for name in (*(path.name + ending for ending in AUXILIARY if path.suffix == ".sqlite"), path.name):
        path.with_name(name).unlink(missing_ok=True)
    _sync(path.parent)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _settle(file: int, mode: int, owner: tuple[int, int] | None) -> None:
    if owner is not None and owner != (os.geteuid(), os.getegid()):
        os.fchown(file, *owner)
    os.fchmod(file, mode)
    os.fsync(file)


def _sync(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
