"""`gpucampus restore`: a verified backup in the place of what is there, in one step that can be gone on with.

1. The backup is unpacked beside the state and verified: hashes, databases, settings, versions.
2. Every file that will change is copied into `before-restore-TIME` in the state folder.
3. Every new file is written beside the one that it replaces.
4. A note in the state folder lists the replacements. It is the point of no return: before it all is old, after it the
   rest is done again from the note, however often it breaks off. The hub does not start while there is one.
5. The files are replaced, the settings first, since they say where the note is; then the note goes.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from spawner import settings as settings_file
from spawner.keeping import archive, files
from spawner.keeping.archive import Manifest
from spawner.keeping.backup import stamp
from spawner.keeping.databases import DATABASES
from spawner.keeping.files import KeepingError
from spawner.keeping.lock import RESTORE, UPGRADE
from spawner.keeping.places import Places, settings_target
from spawner.settings import Settings, SettingsError

__all__ = ["Opened", "finish", "open_backup", "put_back", "unpacking"]

_DRAFT = ".restoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A verified backup: its members in a folder of our own, and where they belong."""

    manifest: Manifest
    folder: Path
    places: Places


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One replacement: the new file beside its target, or nothing where the target goes."""

    draft: str
    target: str


def open_backup(file: Path, folder: Path, present: Settings | None, *, other_hub: bool = False) -> Opened:
    """Verify a backup into an empty folder; KeepingError where it is damaged, not this hub's, or not for this version.

    Parameters
    ----------
    file
        The backup.
    folder
        Where to unpack it.
    present
        The settings that are in force here; None on a bare machine.
    other_hub
        Whether the backup of another hub, or with other places for its files, is wanted.
    """
    manifest = archive.read(file, folder)
    if "settings.toml" not in manifest.members:
        raise KeepingError(f"{file} holds no settings; nothing was changed")
    for database in DATABASES:
        database.refuse_newer(folder / database.name)
    try:
        settings = settings_file.load(folder / "settings.toml")
    except SettingsError as error:
        raise KeepingError(
            f"the settings in {file} are not for this version ({str(error).partition(': ')[2]}): check out version "
            f"{manifest.gpucampus}; nothing was changed"
        ) from error
    places = Places.of(settings, settings_target(manifest.settings_file))
    for member in manifest.members:
        places.target(member)
    if present is not None and not other_hub:
        _same_hub(file, manifest, Places.of(present, settings_file.locate()), places, present.hub.name)
    return Opened(manifest=manifest, folder=folder, places=places)


def put_back(opened: Opened, when: datetime, *, only: frozenset[str] | None = None) -> Path:
    """Replace what is here by the backup, and give the folder with what was here; `only` names members to put back.

    The caller has the state folder alone. What is here and not in the backup goes, too: databases, secrets, config.d.
    """
    places, kept = opened.places, _kept(opened.places.state, when)
    finish(places.state)
    audit = any(name.startswith("log/") for name in opened.manifest.members)
    present = places.present(audit=audit)
    new = {name: opened.folder / name for name in opened.manifest.members}
    if only is not None:
        present, new = ({name: path for name, path in these.items() if name in only} for these in (present, new))
    changed = [name for name in new if not _same(new[name], places.target(name))]
    gone = [name for name in present if name not in new and name.startswith(("secrets/", "config.d/"))]
    gone += [database.name for database in DATABASES if database.name in present and database.name not in new]
    _keep(places, (name for name in (*changed, *gone) if name in present), kept)
    steps: list[_Step] = []
    for name in sorted(changed, key=lambda name: name != "settings.toml"):
        target = places.target(name)
        draft = _beside(target)
        files.folder(target.parent, 0o700 if name.startswith("secrets/") else 0o755)
        draft.unlink(missing_ok=True)  # of a restore that broke off before its note
        files.copy(new[name], draft, mode=_mode(name, opened.manifest, target), owner=_owner(target))
        steps.append(_Step(draft=str(draft), target=str(target)))
    steps += [_Step(draft="", target=str(places.target(name))) for name in gone]
    if only is None and (places.state / UPGRADE).exists():  # what broke off there is replaced as a whole
        steps.append(_Step(draft="", target=str(places.state / UPGRADE)))
    note = {"made": opened.manifest.made, "kept": str(kept), "steps": [asdict(step) for step in steps]}
    files.write(places.state / RESTORE, json.dumps(note, indent=1))
    finish(places.state)
    return kept


def finish(state: Path) -> str:
    """Do what a note of a restore says and remove it; the time of that backup, empty where there is no note."""
    path = state / RESTORE
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    for step in (_Step(**step) for step in note["steps"]):
        target = Path(step.target)
        if not step.draft and target.exists():
            files.remove(target)
        elif step.draft and Path(step.draft).exists():  # else it has been done
            files.move(Path(step.draft), target)
    files.remove(path)
    return str(note["made"])


@contextmanager
def unpacking(state: Path) -> Iterator[Path]:
    """Give a folder for a backup's members, on the disk that they will be on; the caller has the state folder alone."""
    for left in state.glob(".restore-*"):  # by a restore that was killed
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=state, prefix=".restore-") as folder:
        yield Path(folder)


def _same_hub(file: Path, manifest: Manifest, here: Places, there: Places, name: str) -> None:
    if manifest.hub != name:
        raise KeepingError(
            f"{file} is of the hub {manifest.hub}, and here is {name}: if it shall take its place, say --other-hub; "
            "nothing was changed"
        )
    for key, mine in asdict(here).items():
        theirs = asdict(there)[key]
        if theirs not in {mine, None}:  # where the backup has no such place, nothing is written there
            raise KeepingError(
                f"{file} has its {key} in {theirs}, and here it is in {mine or 'no place'}: if it shall go there, say "
                "--other-hub; nothing was changed"
            )


def _kept(state: Path, when: datetime) -> Path:
    return files.free(state / f"before-restore-{stamp(when)}")


def _keep(places: Places, names: Iterable[str], kept: Path) -> None:
    """Copy what will change, a database with its log and journal as they lie there: nobody has it open."""
    for name in names:
        target = places.target(name)
        files.folder(kept, 0o700)
        files.folder((kept / name).parent, 0o700)
        for ending in ("", *(files.AUXILIARY if target.suffix == ".sqlite" else ())):
            source, copied = target.with_name(target.name + ending), kept / (name + ending)
            if source.is_file():
                files.copy(source, copied)


def _same(new: Path, target: Path) -> bool:
    """Whether a file is as the backup has it; a database never is, since part of it may be in its log."""
    return new.suffix != ".sqlite" and target.is_file() and target.read_bytes() == new.read_bytes()


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}{_DRAFT}")


def _mode(name: str, manifest: Manifest, target: Path) -> int:
    """Secrets and databases for their owner only; the rest as it is here, or was."""
    if name.endswith(".sqlite") or name.startswith(("secrets/", "log/")) or name == "client_secret":
        return 0o600
    return target.stat().st_mode & 0o755 if target.is_file() else manifest.members[name].mode & 0o755


def _owner(target: Path) -> tuple[int, int] | None:
    """The owner of the file that is replaced, else of its folder, where we may choose."""
    if os.geteuid() != 0:
        return None
    status = (target if target.is_file() else target.parent).stat()
    return status.st_uid, status.st_gid
