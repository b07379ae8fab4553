"""A settings file is brought to the newest format by its text, so that comments stay."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

from spawner import cli
from spawner.keeping import settings_text
from spawner.keeping.files import KeepingError
from spawner.settings import Settings
from tests.keeping.conftest import Kept

FILE = Path("settings.toml")


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def answer(*words: object, status: int = 0) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == status, done.output
    return dict(json.loads(done.stdout))


def to_two(text: str) -> str:
    return text.replace("version = 1", "version = 2").replace("colour", "color")


def test_the_newest_version_is_the_one_that_the_settings_have():
    assert get_args(Settings.model_fields["version"].annotation) == (settings_text.NEWEST,)
    assert set(settings_text.MIGRATIONS) == set(range(1, settings_text.NEWEST))


def test_each_step_is_taken_once_and_comments_stay():
    text = "# mine\nversion = 1  # old\ncolour = 'red'\n"
    new = settings_text.migrate(text, FILE, migrations={1: to_two}, newest=2)
    assert new == "# mine\nversion = 2  # old\ncolor = 'red'\n"
    assert settings_text.migrate(new, FILE, migrations={1: to_two}, newest=2) == new


def test_a_migration_that_does_not_write_its_version_is_a_bug():
    with pytest.raises(AssertionError):
        settings_text.migrate("version = 1", FILE, migrations={1: lambda text: text}, newest=2)


@pytest.mark.parametrize("text", ["", "version = '1'", "version = true", "version = 0", "version = 1.0", "version ="])
def test_a_file_without_a_usable_version_is_one_sentence(text):
    with pytest.raises(KeepingError, match=r"settings\.toml: (version|not valid TOML)"):
        settings_text.migrate(text, FILE)


def test_the_command_says_that_there_is_nothing_to_do_and_writes_nothing(hub: Kept):
    before = hub.path.stat().st_mtime_ns
    done = run("settings", "migrate", "--write")
    assert (done.exit_code, "is of version 1 already, the newest" in done.stdout) == (0, True)
    assert hub.path.stat().st_mtime_ns == before


def test_a_file_of_a_newer_version_is_one_sentence(hub: Kept):
    hub.path.write_text(hub.path.read_text().replace("version = 1", "version = 7"))
    (finding,) = answer("settings", "migrate", status=1)["findings"]
    assert "is of version 7, and this gpucampus knows 1 as the newest" in finding


def test_the_file_is_replaced_on_demand_and_the_old_one_stays(hub: Kept, monkeypatch):
    monkeypatch.setattr(settings_text, "MIGRATIONS", {1: to_two})
    monkeypatch.setattr(settings_text, "NEWEST", 2)
    monkeypatch.setattr(settings_text.migrate, "__kwdefaults__", {"migrations": None, "newest": 2})
    hub.path.chmod(0o640)
    text = hub.path.read_text()
    shown = run("settings", "migrate")
    assert to_two(text).strip() == shown.stdout.strip()
    assert hub.path.read_text() == text
    assert answer("settings", "migrate", "--write")["kept"] == f"{hub.path}.version-1"
    assert hub.path.read_text() == to_two(text)
    assert hub.path.stat().st_mode & 0o777 == 0o640
    assert Path(f"{hub.path}.version-1").read_text() == text
