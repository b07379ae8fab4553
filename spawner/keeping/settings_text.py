"""`gpucampus settings migrate`: the text of a settings file of an older format, as the newest format has it.

There is one format yet. With the second, a function joins MIGRATIONS that turns a text of version 1 into one of version
2; it works on the text, so that the operator's comments and order stay.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from spawner.keeping import files
from spawner.keeping.files import KeepingError

__all__ = ["MIGRATIONS", "NEWEST", "migrate", "replace", "version_of"]

MIGRATIONS: Mapping[int, Callable[[str], str]] = {}  # from this version to the next
NEWEST = 1


def version_of(text: str, path: Path) -> int:
    """The version that a settings file says it has."""
    try:
        found = tomllib.loads(text).get("version")
    except tomllib.TOMLDecodeError as error:
        raise KeepingError(f"{path}: not valid TOML ({error})") from error
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise KeepingError(
            f"{path}: version = {found!r}: write `version = {NEWEST}` where it is a file of this version"
        )
    return found


def migrate(
    text: str, path: Path, *, migrations: Mapping[int, Callable[[str], str]] | None = None, newest: int = NEWEST
) -> str:
    """Bring a text to the newest version, one version after the other; KeepingError where it is newer than that."""
    steps = MIGRATIONS if migrations is None else migrations
    found = version_of(text, path)
    if found > newest:
        raise KeepingError(
            f"{path} is of version {found}, and this gpucampus knows {newest} as the newest: check out the version "
            "that the file was written for"
        )
    for number in range(found, newest):
        text = steps[number](text)
        if version_of(text, path) != number + 1:
            raise AssertionError(f"the migration of settings from {number} does not write version {number + 1}")
    return text


def replace(path: Path, new: str, was: int) -> Path:
    """Write a migrated text in the place of the old one, which stays beside it; the old one's new path."""
    kept = path.with_name(f"{path.name}.version-{was}")
    if kept.exists():
        raise KeepingError(f"{kept} is there already and is not overwritten: move it away")
    status = path.stat()
    mode, owner = status.st_mode & 0o777, (status.st_uid, status.st_gid)
    files.copy(path, kept, mode=mode, owner=owner)
    files.write(path, new, mode=mode, owner=owner)
    return kept
