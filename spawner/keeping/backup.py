"""`gpucampus backup`: what a hub cannot be made again from, as one file, while the hub runs."""

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from spawner import __version__
from spawner import settings as settings_file
from spawner.keeping import archive, files
from spawner.keeping.archive import Manifest
from spawner.keeping.databases import DATABASES, revision, snapshot
from spawner.keeping.files import KeepingError
from spawner.keeping.places import Places
from spawner.settings import Settings

__all__ = ["Backup", "default_name", "make", "stamp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that was made, and which databases were not there to be kept."""

    file: Path
    manifest: Manifest
    missing: tuple[str, ...]


def stamp(when: datetime) -> str:
    """A time as part of a file's name."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H%M%SZ")


def default_name(settings: Settings, when: datetime) -> str:
    """What a backup is called where nobody names it."""
    return f"{settings.hub.name}-{stamp(when)}.backup.tar"


def make(settings: Settings, settings_path: Path, target: Path, when: datetime, *, audit: bool = False) -> Backup:
    """Write everything that must survive into one new file; KeepingError where that cannot be, and then there is none.

    Parameters
    ----------
    settings, settings_path
        The hub's settings, and the file that they were read from.
    target
        The file to make. It is never replaced, and its folder must be there.
    when
        The time to note.
    audit
        Whether the audit lines are kept, too.
    """
    if target.exists():
        raise KeepingError(f"{target} is there already and is not overwritten: name another file")
    places = Places.of(settings, settings_path)
    try:
        found = places.present(audit=audit)
        # beside the target: what the backup needs there can be had, and secrets stay in one place
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".gpucampus-backup-") as folder:
            staged = {name: Path(folder) / "new" / name for name in found}
            for name, copied in staged.items():
                files.folder(copied.parent, 0o700)
                if name.endswith(".sqlite"):
                    snapshot(found[name], copied)
                else:
                    files.copy(found[name], copied, mode=found[name].stat().st_mode & 0o755)
            manifest = _manifest(settings, settings_path, staged, when)
            archive.write(target, manifest, staged, Path(folder) / "draft")
    except OSError as error:
        raise KeepingError(f"no backup was made: {error.filename or target}: {error.strerror or error}") from error
    missing = tuple(database.name for database in DATABASES if database.name not in found)
    return Backup(file=target, manifest=manifest, missing=missing)


def _manifest(settings: Settings, settings_path: Path, staged: dict[str, Path], when: datetime) -> Manifest:
    path = settings_path.absolute()
    inside = path.is_relative_to(settings_file.ROOT)
    return Manifest(
        format=archive.FORMAT,
        gpucampus=__version__,
        jupyterhub=version("jupyterhub"),
        made=when.astimezone(UTC).isoformat(timespec="seconds"),
        hub=settings.hub.name,
        settings_file=str(path.relative_to(settings_file.ROOT) if inside else path),
        revisions={
            database.name: revision(staged[database.name]) or "" for database in DATABASES if database.name in staged
        },
        members={name: archive.describe(file) for name, file in staged.items()},
    )
