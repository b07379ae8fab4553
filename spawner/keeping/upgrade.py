"""`gpucampus upgrade`: whether hub, images, databases and settings fit together, and the migrations of both databases.

Before the first migration there is a backup, and a note that names it. What fails puts that backup back; where the
machine dies meanwhile, the hub does not start on what is left, and the next run puts the backup back before it begins.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spawner import __version__
from spawner.findings import Finding, Status
from spawner.keeping import backup, files, restore
from spawner.keeping.databases import DATABASES, HUB, RECORDS, Database, Standing
from spawner.keeping.files import KeepingError
from spawner.keeping.lock import UPGRADE, broken_off
from spawner.records import Records, RecordsError
from spawner.settings import ROOT, Settings

__all__ = ["Upgraded", "check", "look_at_images", "migrate"]

IMAGES_S = 120
MIGRATION_S = 3600
_BUILD = "make images"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """What an upgrade did; the backup is None where nothing had to be done."""

    done: tuple[str, ...]
    backup: Path | None


def check(settings: Settings, images: list[dict[str, Any]] | str) -> list[Finding]:
    """Compare what is there with what this version needs; `images` is the answer of look_at_images."""
    ok = Finding("version", Status.OK, f"gpucampus {__version__}, JupyterHub {version('jupyterhub')}")
    found = [ok, Finding("settings", Status.OK, f"version {settings.version}, the newest")]
    for what, command in broken_off(settings.state):
        text, remedy = f"{what} broke off, and the hub does not start", f"`{command}` goes on from there"
        found.append(Finding(command.rpartition(" ")[2], Status.FAIL, text, remedy))
    found += [_database(database, settings.state / database.name) for database in DATABASES]
    if isinstance(images, str):
        return [*found, Finding("images", Status.FAIL, images, "start the container engine, and ask again")]
    return [*found, *(_image(image, version("jupyterhub")) for image in images)]


def look_at_images(limit_s: float = IMAGES_S) -> list[dict[str, Any]] | str:
    """Ask the checkout's build about each variant's image; a sentence where that cannot be known."""
    command = [sys.executable, "-m", "deploy.image_check"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"the container engine did not say within {limit_s:g} s which images it has"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["the images cannot be looked at"])[-1]
    return list(json.loads(done.stdout))


def migrate(settings: Settings, settings_path: Path, when: datetime) -> Upgraded:
    """Bring both databases to this version, after a backup; KeepingError where that failed, and then all is as before.

    The caller has the state folder alone.
    """
    state = settings.state
    restore.finish(state)
    _put_back(settings, when)
    for database in DATABASES:
        database.refuse_newer(state / database.name)
    pending = {database: database.pending(state / database.name) for database in DATABASES}
    if not any(pending.values()):
        return Upgraded(done=(), backup=None)
    files.folder(state / "backups", 0o700)
    target = files.free(state / "backups" / f"before-upgrade-{backup.default_name(settings, when)}")
    backup.make(settings, settings_path, target, when)
    files.write(state / UPGRADE, json.dumps({"backup": target.name}))
    try:
        if pending[RECORDS]:
            _migrate_records(state / RECORDS.name)
        if pending[HUB]:
            _migrate_hub(state / HUB.name)
        left = [database.name for database in DATABASES if database.standing(state / database.name) is Standing.OLDER]
        if left:
            raise KeepingError(f"{left[0]} is still older after its migration")
    except (KeepingError, OSError) as error:
        _put_back(settings, when)
        raise KeepingError(
            f"the migration failed and both databases are as before: {error}; check out the version that ran until "
            f"now and start it; the backup is {target}"
        ) from error
    files.remove(state / UPGRADE)
    done = tuple(f"{database.name}: {step}" for database, steps in pending.items() for step in steps)
    return Upgraded(done=done, backup=target)


def _put_back(settings: Settings, when: datetime) -> None:
    """Put the databases back that the note of an upgrade names, and remove the note."""
    note = settings.state / UPGRADE
    try:
        named = json.loads(note.read_text(encoding="utf-8"))["backup"]
    except FileNotFoundError:
        return
    file = settings.state / "backups" / Path(named).name
    with restore.unpacking(settings.state) as folder:
        opened = restore.open_backup(file, folder, settings)
        restore.put_back(opened, when, only=frozenset(database.name for database in DATABASES))
    files.remove(note)


def _migrate_records(path: Path) -> None:
    try:
        with closing(Records.open(f"sqlite:///{path}", upgrade=True)):
            return
    except RecordsError as error:
        raise KeepingError(str(error)) from error


def _migrate_hub(path: Path) -> None:
    """Let JupyterHub do it, in its own process and without our configuration, which would want sign-in and engine."""
    # it calls `alembic` by its name
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"}
    command = [sys.executable, "-m", "jupyterhub", "upgrade-db", f"--JupyterHub.db_url=sqlite:///{path}"]
    try:
        with tempfile.TemporaryDirectory() as empty:  # it would read a jupyterhub_config.py where it stands
            done = subprocess.run(
                command, cwd=empty, env=env, capture_output=True, text=True, check=False, timeout=MIGRATION_S
            )
    except subprocess.TimeoutExpired as error:
        raise KeepingError(f"JupyterHub's migration took more than {MIGRATION_S} s") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise KeepingError(f"JupyterHub's migration ended with {done.returncode}: {reason}")


def _database(database: Database, path: Path) -> Finding:
    standing = database.standing(path)
    if standing is Standing.MISSING:
        return Finding(database.name, Status.OK, f"is not there yet: {database.owner} makes it at its first start")
    if standing is Standing.CURRENT:
        return Finding(database.name, Status.OK, "has every migration of this version")
    if standing is Standing.NEWER:
        text = "is newer than this version, and the hub does not start with it"
        return Finding(database.name, Status.FAIL, text, "check out the version that wrote it, or restore a backup")
    steps = database.pending(path)
    text = f"lacks {len(steps)} migration(s), and the hub does not start with it: {'; '.join(steps)}"
    return Finding(database.name, Status.FAIL, text, "end the hub, then `gpucampus upgrade`: it makes a backup first")


def _image(image: dict[str, Any], hub: str) -> Finding:
    name, inside = f"image {image['variant']}", str(image["jupyterhub"])
    if not image["built"]:
        text = f"{image['image']} is not built, and nobody is offered it"
        return Finding(name, Status.WARN, text, _BUILD)
    if inside.split(".")[:2] != hub.split(".")[:2]:
        text = f"{image['image']} has JupyterHub {inside or 'of an unknown version'}, and the hub is {hub}"
        return Finding(name, Status.FAIL, text, f"{_BUILD}; servers that run go on with what they have")
    if not image["current"]:
        text = f"{image['image']} was built from other files than this checkout has; it still works with this hub"
        return Finding(name, Status.WARN, text, _BUILD)
    return Finding(name, Status.OK, f"{image['image']} is current, with JupyterHub {inside}")
