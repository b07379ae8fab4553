"""The commands that keep a hub: backup, restore, upgrade, settings migrate."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from spawner import settings as settings_file
from spawner.cli.look import settings_app
from spawner.cli.machine import ask_hub, load
from spawner.cli.show import AsJSON, app, confirm, console, end, fail, print_json, print_table
from spawner.findings import Finding, Status
from spawner.keeping import backup as backups
from spawner.keeping import lock, restore, settings_text, upgrade
from spawner.keeping.files import KeepingError
from spawner.keeping.places import default_state
from spawner.settings import Settings, SettingsError

__all__ = ["backup_command", "restore_command", "settings_migrate", "upgrade_command"]


@app.command("backup")
def backup_command(
    file: Annotated[Path | None, typer.Argument(help="The file to make; else one named by hub and time, here.")] = None,
    *,
    audit: Annotated[bool, typer.Option("--audit", help="The audit lines, too.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Keep databases, secrets, settings, catalog and config.d in one file; the hub may run. Homes are not in it."""
    settings = load(as_json=as_json)
    now = datetime.now(UTC)
    with _keeping(as_json=as_json), lock.beside(settings.state):
        made = backups.make(
            settings,
            settings_file.locate(),
            (file or Path(backups.default_name(settings, now))).absolute(),
            now,
            audit=audit,
        )
    notes = [f"{name} is not there yet, so the backup has none" for name in made.missing]
    if as_json:
        print_json({"file": str(made.file), "manifest": made.manifest.model_dump(), "notes": notes, "findings": []})
    else:
        for note in notes:
            console().print(note)
        console().print(
            f"{made.file}: {len(made.manifest.members)} files of the hub {made.manifest.hub}. It holds secrets: keep "
            "it where only you can read it, and not on this machine alone."
        )


@app.command("restore")
def restore_command(
    file: Annotated[Path | None, typer.Argument(help="The backup; none to go on with one that broke off.")] = None,
    *,
    other_hub: Annotated[
        bool, typer.Option("--other-hub", help="Also of another hub, or where its files lie elsewhere.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before files are replaced.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Put a backup in the place of what is here; the hub must be down, servers go on."""
    present, state = _present(as_json=as_json)
    now = datetime.now(UTC)
    with _keeping(as_json=as_json), _alone(present, state):
        finished = restore.finish(state)
        if file is None:
            if not finished:
                raise KeepingError("no restore has broken off here: name the backup to put back")
            _said({"finished": finished, "findings": []}, f"the restore of {finished} is finished", as_json=as_json)
            return
        with restore.unpacking(state) as folder:
            opened = restore.open_backup(file, folder, present, other_hub=other_hub)
            manifest, places = opened.manifest, opened.places
            question = (
                f"Put back the hub {manifest.hub} as of {manifest.made} (gpucampus {manifest.gpucampus}): settings to "
                f"{places.settings}, state to {places.state}, catalog to {places.catalog}?"
            )
            confirm(question, yes=yes, as_json=as_json)
            if places.state == state:
                kept = restore.put_back(opened, now)
            else:
                with lock.alone(places.state):
                    kept = restore.put_back(opened, now)
    answer = {"hub": manifest.hub, "made": manifest.made, "kept": str(kept), "findings": []}
    _said(answer, f"done; what was here is in {kept}. Start the hub now.", as_json=as_json)


@app.command("upgrade")
def upgrade_command(
    *,
    check: Annotated[bool, typer.Option("--check", help="Only say what would be done.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Migrate both databases to this version, after a backup; the hub must be down, servers go on."""
    settings = load(as_json=as_json)
    done: upgrade.Upgraded | None = None
    with _keeping(as_json=as_json):
        if not check:
            with _alone(settings, settings.state):
                done = upgrade.migrate(settings, settings_file.locate(), datetime.now(UTC))
        looked = upgrade.check(settings, upgrade.look_at_images())
    # the migrations are done; images are another command's, so after an upgrade they are told and are no failure
    findings = [_sentence(finding) for finding in looked if finding.status is Status.FAIL] if check else []
    if as_json:
        print_json(
            {
                "done": list(done.done) if done else [],
                "backup": str(done.backup) if done and done.backup else "",
                "checks": [asdict(finding) for finding in looked],
                "findings": findings,
            }
        )
        end(findings)
    if done is not None:
        for step in done.done:
            console().print(step)
        console().print(f"the backup is {done.backup}" if done.backup else "no database had to be migrated")
    rows = [(finding.check, finding.status.value, finding.text, finding.remedy or "-") for finding in looked]
    print_table(settings, "upgrade", ("check", "state", "found", "what to do"), rows)
    if done is not None:
        build = any(finding.remedy for finding in looked)
        console().print(f"Next: {'`make images`, then ' if build else ''}start the hub.")
    end(findings)


@settings_app.command("migrate")
def settings_migrate(
    path: Annotated[Path | None, typer.Argument(help="The file; else the one that the hub would read.")] = None,
    *,
    write: Annotated[bool, typer.Option("--write", help="Replace the file; the old one stays beside it.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Bring a settings file to the newest format; prints it unless told to write it."""
    path = path or settings_file.locate()
    with _keeping(as_json=as_json):
        try:
            with path.open(encoding="utf-8", newline="") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise KeepingError(f"{path}: cannot be read ({error})") from error
        found = settings_text.version_of(text, path)
        new = settings_text.migrate(text, path)
    answer: dict[str, object] = {"path": str(path), "from": found, "to": settings_text.NEWEST, "findings": []}
    if new == text:
        _said(answer, f"{path} is of version {found} already, the newest", as_json=as_json)
        return
    if not write:
        _said(answer | {"text": new}, new, as_json=as_json)
        return
    with _keeping(as_json=as_json):
        kept = settings_text.replace(path, new, found)
    said = f"{path} is of version {settings_text.NEWEST} now; as it was, it is {kept}"
    _said(answer | {"kept": str(kept)}, said, as_json=as_json)


@contextmanager
def _keeping(*, as_json: bool) -> Iterator[None]:
    """Whatever cannot be done is one finding."""
    try:
        yield
    except KeepingError as error:
        fail(str(error), as_json=as_json)
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror or error}", as_json=as_json)


@contextmanager
def _alone(settings: Settings | None, state: Path) -> Iterator[None]:
    """Have the state folder for oneself; a hub that answers although its lock is free works with another folder."""
    if settings is not None and (hub := ask_hub(settings)).up:
        raise KeepingError(f"the hub answers on {hub.api.url}/health: end it first; servers go on")
    with lock.alone(state):
        yield


def _present(*, as_json: bool) -> tuple[Settings | None, Path]:
    """The settings that are here, and the state folder that they name; on a bare machine the usual one."""
    path = settings_file.locate()
    if not path.exists():
        return None, default_state()
    try:
        settings = settings_file.load(path)
    except SettingsError as error:
        fail(f"{error}; repair it, or move it away to restore without it", as_json=as_json)
    return settings, settings.state


def _said(answer: Mapping[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(dict(answer))
    else:
        console().print(text, soft_wrap=True)


def _sentence(finding: Finding) -> str:
    return f"{finding.check} {finding.text}: {finding.remedy}"
