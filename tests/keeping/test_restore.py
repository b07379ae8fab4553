"""A restore changes nothing before all is verified, loses nothing, and can break off at any line."""

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import pytest

from spawner.keeping import backup, files, lock, restore
from spawner.keeping.files import KeepingError
from spawner.keeping.places import settings_target
from tests.keeping.conftest import NOW, Kept, make_hub, our_head, set_revision


def test_all_is_as_it_was_and_what_was_here_is_kept(hub: Kept):
    file, old = hub.backup(), hub.content()
    hub.change()
    changed = hub.content()
    kept = hub.restore(file)
    assert hub.content() == old
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert (kept / "secrets/crypt_key").read_text() == "another"
    assert (kept / "secrets/late_key").read_text() == "made later"
    assert (kept / "config.d/20-late.py").read_text() == changed["config.d/20-late.py"]
    assert (kept / "catalog.toml").read_text() == "# another\n"
    assert (kept / "settings.toml").read_text() == changed["settings.toml"]
    with closing(sqlite3.connect(kept / "records.sqlite")) as database:
        assert database.execute("select * from notes").fetchall() == [("first",), ("later",)]
    assert not list(hub.folder.rglob("*.restoring"))
    assert not list(hub.state.glob(".restore-*"))


def test_a_hub_that_lost_everything_is_put_back(hub: Kept):
    file, old = hub.backup(), hub.content()
    for path in (*hub.state.iterdir(), hub.folder / "config.d"):
        subprocess.run(["rm", "-r", path], check=True)
    for name in ("settings.toml", "catalog.toml", "client_secret", "campus-ca.pem"):
        (hub.folder / name).unlink()
    hub.restore(file)
    assert hub.content() == old
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in hub.state.iterdir()}
    assert (modes["secrets"], modes["hub.sqlite"], modes["records.sqlite"]) == (0o700, 0o600, 0o600)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (hub.state / "secrets").iterdir())
    assert stat.S_IMODE((hub.folder / "client_secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((hub.folder / "campus-ca.pem").stat().st_mode) == 0o644, "whoever may read it may still"


def test_a_backup_from_before_the_campus_had_certificates_leaves_them_alone(hub: Kept):
    text = hub.path.read_text()
    hub.path.write_text(text.partition("[campus]")[0])
    file = hub.backup()
    hub.path.write_text(text)
    hub.restore(file)
    assert hub.settings.campus.ca_file is None, "the settings are the backup's"
    assert (hub.folder / "campus-ca.pem").read_text() == "of the campus"


def test_certificates_that_go_elsewhere_need_a_word(hub: Kept, tmp_path):
    file, text = hub.backup(), hub.path.read_text()
    hub.path.write_text(text.replace("campus-ca.pem", "another-ca.pem"))
    with pytest.raises(KeepingError, match=r"has its campus_ca in .*campus-ca.pem, and here it is in .*another-ca.pem"):
        hub.restore(file)
    hub.restore(file, other_hub=True)
    assert hub.path.read_text() == text


def test_the_log_of_the_old_database_never_meets_the_new_one(hub: Kept):
    file = hub.backup()
    # killed with rows in the log: a second process leaves it behind, since its connection is never closed
    script = (
        "import os, sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute(\"insert into notes values ('later')\");"
        "d.commit(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(hub.state / "records.sqlite")], check=False)
    assert (hub.state / "records.sqlite-wal").stat().st_size > 0
    kept = hub.restore(file)
    assert not (hub.state / "records.sqlite-wal").exists()
    with closing(sqlite3.connect(hub.state / "records.sqlite")) as database:
        assert database.execute("select * from notes").fetchall() == [("first",)]
    with closing(sqlite3.connect(kept / "records.sqlite")) as database:
        assert ("later",) in database.execute("select * from notes").fetchall(), "what was in the log is kept, too"


def test_nothing_is_touched_while_a_hub_holds_the_state(hub: Kept):
    file = hub.backup()
    hub.change()
    changed = hub.content()
    lock.admit(hub.state)
    with pytest.raises(KeepingError, match="end it first"):
        hub.restore(file)
    assert hub.content() == changed


def test_a_hub_does_not_start_in_the_middle_of_a_restore(hub: Kept):
    with lock.alone(hub.state), pytest.raises(KeepingError, match="at work"):
        lock.admit(hub.state)
    lock.admit(hub.state)
    lock.admit(hub.state)  # two of its processes are fine


def test_the_lock_goes_with_the_process_however_it_ends(hub: Kept):
    script = (
        "import os, signal, sys; from pathlib import Path; from spawner.keeping import lock;"
        "lock.admit(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(hub.state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(KeepingError, match="end it first"), lock.alone(hub.state):
            pass
        process.kill()
    with lock.alone(hub.state):
        pass


def test_the_backup_of_another_hub_needs_a_word(hub: Kept, databases, tmp_path):
    other = make_hub(tmp_path / "other", databases)
    text = other.path.read_text().replace(str(other.folder), str(hub.folder))
    other.path.write_text(other.path.read_text() + '[hub]\nname = "physics"\n')
    file, before = other.backup(), hub.content()
    with pytest.raises(KeepingError, match="is of the hub physics, and here is gpucampus"):
        hub.restore(file)
    assert hub.content() == before
    # the same name with its files elsewhere could write anywhere
    other.path.write_text(text.replace(f'state = "{hub.state}"', f'state = "{tmp_path}/elsewhere"'))
    file = other.folder / "b.tar"
    os.environ["GPUCAMPUS_SETTINGS"] = str(other.path)
    (tmp_path / "elsewhere").mkdir()
    other.backup("b.tar")
    os.environ["GPUCAMPUS_SETTINGS"] = str(hub.path)
    with pytest.raises(KeepingError, match=r"has its state in .*elsewhere, and here it is in"):
        hub.restore(file)
    assert hub.content() == before


def test_a_backup_of_a_newer_version_is_refused_in_one_sentence(hub: Kept):
    set_revision(hub.state / "records.sqlite", "9999")
    file = hub.backup()
    set_revision(hub.state / "records.sqlite", our_head())
    before = hub.content()
    with pytest.raises(KeepingError, match="has the revision 9999, which this version does not know"):
        hub.restore(file)
    assert hub.content() == before


def test_settings_that_this_version_cannot_read_are_refused(hub: Kept):
    good = hub.path.read_text()
    hub.path.write_text(good.replace("version = 1", "version = 1\nfuture = true"))
    present = hub.path.read_text()
    hub.path.write_text(good)
    settings = hub.settings
    hub.path.write_text(present)
    file = backup.make(settings, hub.path, hub.folder / "a.tar", NOW).file
    hub.path.write_text(good)
    before = hub.content()
    with pytest.raises(KeepingError, match=r"not for this version .*future is not a setting"):
        hub.restore(file)
    assert hub.content() == before


@pytest.mark.parametrize("was", ["../../etc/passwd", "/etc/gpucampus/settings.toml", "deploy/settings.toml"])
def test_on_a_bare_machine_settings_go_to_no_place_that_only_the_backup_names(was, monkeypatch, tmp_path):
    monkeypatch.delenv("GPUCAMPUS_SETTINGS", raising=False)
    monkeypatch.setenv("GPUCAMPUS_STATE", str(tmp_path))
    monkeypatch.setattr("spawner.settings.ROOT", tmp_path)
    with pytest.raises(KeepingError, match="set GPUCAMPUS_SETTINGS"):
        settings_target(was)
    assert settings_target("settings.toml") == tmp_path / "settings.toml"


class Crash(BaseException):
    """The machine stops: nothing that would clean up gets anywhere."""


class Machine:
    """Stops before the n-th change of a file, and does nothing more from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, changes: int) -> None:
        self.left = changes
        for name in ("copy", "write", "move", "remove", "folder", "_settle", "_sync"):
            monkeypatch.setattr(files, name, self._wrapped(getattr(files, name)))

    def _wrapped(self, change):
        def changed(*arguments, **options):
            self.left -= 1
            if self.left < 0:
                raise Crash
            return change(*arguments, **options)

        return changed


def settled(hub: Kept) -> dict[str, str]:
    """What the next start of the hub would find, and what the next run makes of it."""
    if (hub.state / lock.RESTORE).exists():
        with pytest.raises(KeepingError, match=r"a restore of .* broke off"):
            lock.admit(hub.state)
        while lock._held:
            os.close(lock._held.pop())
        with lock.alone(hub.state):
            assert restore.finish(hub.state)
            assert not restore.finish(hub.state), "it is finished"
    return hub.content()


def test_a_crash_at_any_line_leaves_the_old_state_or_the_new_one(hub: Kept, monkeypatch, tmp_path):
    file, new = hub.backup("../a.tar"), hub.content()
    hub.change()
    old, pristine = hub.content(), tmp_path / "pristine"
    shutil.copytree(hub.folder, pristine)
    seen: list[str] = []
    for changes in range(200):
        if seen[-1:] == ["new"]:  # else it is as it was, but for what the last crash left over
            shutil.rmtree(hub.folder)
            shutil.copytree(pristine, hub.folder)
        with monkeypatch.context() as patched:
            Machine(patched, changes)
            try:
                hub.restore(file)
            except Crash:
                ended = False
            else:
                ended = True
        found = settled(hub)
        assert found in (old, new), f"after {changes} changes"
        seen.append("new" if found == new else "old")
        if ended:
            break
    assert ended
    assert seen == sorted(seen, reverse=True), "there is one point of no return"
    assert 20 < seen.count("old") < len(seen) - 20


def test_a_restore_that_breaks_off_over_and_over_comes_to_its_end(hub: Kept, monkeypatch):
    file, new = hub.backup(), hub.content()
    hub.change()

    def stop(_state):
        raise Crash

    with monkeypatch.context() as patched, lock.alone(hub.state), restore.unpacking(hub.state) as folder:
        opened = restore.open_backup(file, folder, hub.settings)
        real = restore.finish
        patched.setattr(
            restore, "finish", lambda state: stop(state) if (state / lock.RESTORE).exists() else real(state)
        )
        with pytest.raises(Crash):
            restore.put_back(opened, NOW)
    note = json.loads((hub.state / lock.RESTORE).read_text())
    assert note["steps"][0]["target"] == str(hub.path), "a start in between reads where the note is"
    lives = 0
    while (hub.state / lock.RESTORE).exists():
        lives += 1
        assert lives < 50
        with monkeypatch.context() as patched:
            Machine(patched, 4)  # as many as replacing one database takes
            with contextlib.suppress(Crash):
                restore.finish(hub.state)
    assert lives >= 4
    assert hub.content() == new
