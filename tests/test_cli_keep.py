"""The commands that keep a hub: what they print, and that a finding is one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spawner import cli
from spawner.keeping import lock, upgrade
from tests.keeping.conftest import Kept, databases, hub, quick_disk, set_revision
from tests.keeping.test_upgrade import CURRENT

__all__ = ["databases", "hub", "quick_disk"]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def answer(*words: object, status: int = 0) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == status, done.output
    return dict(json.loads(done.stdout))


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the engine has; a test may change it."""
    found = [dict(CURRENT)]
    monkeypatch.setattr(upgrade, "look_at_images", lambda: found)
    return found


def test_a_backup_is_named_by_hub_and_time_where_nobody_names_it(hub: Kept, monkeypatch):
    monkeypatch.chdir(hub.folder)
    made = Path(answer("backup", "--audit")["file"])
    assert (made.parent, made.name.startswith("gpucampus-2"), made.name.endswith("Z.backup.tar")) == (
        hub.folder,
        True,
        True,
    )
    said = run("backup", hub.folder / "b.tar").stdout
    assert "It holds secrets" in said
    assert "the crypt_key" not in said


def test_a_restore_asks_and_says_where_the_old_files_are(hub: Kept):
    run("backup", hub.folder / "a.tar")
    old = hub.content()
    hub.change()
    asked = run("restore", hub.folder / "a.tar")
    assert (asked.exit_code, "Say --yes" in asked.stderr) == (2, True)
    assert hub.content() != old
    kept = Path(answer("restore", hub.folder / "a.tar", "--yes")["kept"])
    assert hub.content() == old
    assert (kept / "secrets/crypt_key").read_text() == "another"


def test_a_restore_that_broke_off_is_finished_without_its_file(hub: Kept):
    assert "no restore has broken off" in answer("restore", status=1)["findings"][0]
    draft = hub.state / "secrets/.crypt_key.restoring"
    draft.write_text("from the backup")
    step = {"draft": str(draft), "target": str(hub.state / "secrets/crypt_key")}
    (hub.state / lock.RESTORE).write_text(json.dumps({"made": "then", "kept": "there", "steps": [step]}))
    assert answer("restore")["finished"] == "then"
    assert (hub.state / "secrets/crypt_key").read_text() == "from the backup"


def test_a_missing_backup_is_one_line_and_changes_nothing(hub: Kept):
    before = hub.content()
    done = run("restore", hub.folder / "none.tar", "--yes")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert hub.content() == before


def test_the_check_ends_with_1_only_where_something_must_be_done(hub: Kept, images):
    assert answer("upgrade", "--check")["findings"] == []
    images[0]["current"] = False
    assert answer("upgrade", "--check")["findings"] == []
    images[0]["jupyterhub"] = "5.3.0"
    (finding,) = answer("upgrade", "--check", status=1)["findings"]
    assert finding.startswith("image cpu gpucampus/cpu:1 has JupyterHub 5.3.0")
    assert "make images" in finding


def test_an_upgrade_with_nothing_to_do_says_what_comes_next(hub: Kept, images):
    images[0]["current"] = False
    done = run("upgrade")
    assert done.exit_code == 0
    assert "no database had to be migrated" in done.stdout
    assert "Next: `make images`, then start the hub" in done.stdout


def test_a_newer_database_is_one_line(hub: Kept):
    set_revision(hub.state / "records.sqlite", "9999")
    for words in (("upgrade",), ("history",)):
        done = run(*words)
        assert (done.exit_code, done.stderr.count("\n"), "newer" in done.stderr or "9999" in done.stderr) == (
            1,
            1,
            True,
        )
