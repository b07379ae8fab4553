"""A command imports what it needs: the list of commands is told without the rest, and agrees with it."""

import subprocess
import sys

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from spawner import cli
from spawner.cli.lazy import COMMANDS, LazyGroup

SLOW = {"alembic", "docker", "jupyterhub", "pydantic", "pynvml", "rich", "sqlalchemy", "tornado"}


def imported(*words: str, settings: str = "/nowhere/settings.toml") -> set[str]:
    """Which of the slow packages a command has imported by its end."""
    script = (
        "import sys; from spawner import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    env = {"GPUCAMPUS_SETTINGS": settings, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, *words], env=env, capture_output=True, text=True, check=True)
    return SLOW & set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_that_takes_long():
    assert imported("--help") == set()


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        pytest.param(("gpus",), {"pydantic"}, id="gpus-without-settings"),
        pytest.param(("settings", "check"), {"pydantic", "sqlalchemy", "alembic"}, id="settings"),
    ],
)
def test_a_command_that_ends_early_has_imported_its_own_parts_only(command, needed):
    assert imported(*command) - needed == set()


def test_the_list_agrees_with_the_commands_themselves():
    group = get_command(cli.app)
    assert isinstance(group, LazyGroup)
    group.get_command(None, "no such command")  # which looks into all modules
    assert set(group.commands) == set(COMMANDS)
    for name, command in group.commands.items():
        assert (command.help or "").splitlines()[0] == COMMANDS[name][1]


def test_each_command_is_in_the_modules_that_the_list_names():
    group = get_command(cli.app)
    assert isinstance(group, LazyGroup)
    group.get_command(None, "no such command")
    for name, command in group.commands.items():
        leaves = command.commands.values() if isinstance(command, TyperGroup) else [command]
        found = {str(leaf.callback.__module__).removeprefix("spawner.cli.") for leaf in leaves if leaf.callback}
        assert found == set(COMMANDS[name][0]), name


def test_a_word_that_is_no_command_is_told_with_the_nearest():
    asked = CliRunner().invoke(cli.app, ["gpsu"])
    assert asked.exit_code == 2
    assert "'gpus'" in asked.stderr
