"""The commands of images: the door asks the program, shows its rows, and ends as its findings say."""

import json
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from deploy import images
from spawner import cli
from spawner.cli.images import images_app
from spawner.settings import ROOT


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["images", *words])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the door asked; the program's answer is `answer`."""
    found: list[list[str]] = []

    def answer(command: list[str], **options: Any) -> Any:
        assert options["cwd"] == ROOT
        found.append(command)
        rows = [{"variant": "cpu", "state": "changed"}, {"variant": "plain", "id": "1"}]
        findings = ["cpu: changed"] if command[3] == "list" else []
        text = "no json" if "broken" in command else json.dumps({"rows": rows, "findings": findings})
        return subprocess.CompletedProcess(command, 1 if findings else 0, text, "")

    monkeypatch.setattr("spawner.cli.images.subprocess.run", answer)
    return found


def test_a_finding_is_the_exit_status_and_stands_on_stderr(asked):
    done = run("list")
    assert (done.exit_code, done.stderr) == (1, "gpucampus: cpu: changed\n")
    assert "changed" in done.stdout
    assert asked == [[sys.executable, "-m", "deploy.images", "list"]]


def test_json_is_the_program_s_own_answer(asked):
    done = run("list", "--json")
    assert json.loads(done.stdout)["rows"][1] == {"variant": "plain", "id": "1"}


def test_the_private_key_is_handed_on_by_its_name_and_a_variant_as_it_was_typed(asked):
    assert run("sign", "cpu", "--key", "/k/cosign.key").exit_code == 0
    assert asked[-1][3:] == ["sign", "cpu", "--key", "/k/cosign.key"]
    assert run("verify").exit_code == 0
    assert asked[-1][3:] == ["verify"]


def test_a_program_that_gives_no_answer_is_a_finding(asked):
    done = run("build", "broken")
    assert done.exit_code == 1
    assert "gave no answer" in done.stderr


def test_every_command_of_the_program_has_its_door_and_no_other():
    shown = run("--help").stdout
    doors = {command.name for command in images_app.registered_commands}
    assert doors == set(images.COMMANDS)
    assert all(name in shown for name in images.COMMANDS)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        pytest.param(["build", "nothing"], "nothing is not a variant of the catalog", id="unknown-variant"),
        pytest.param(["scan"], "name a variant", id="no-variant"),
        pytest.param(["sign", "cpu"], "name the site's private key", id="no-key"),
    ],
)
def test_the_program_says_in_one_line_what_is_wrong_and_nothing_else_on_stdout(
    words, text, capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(tmp_path / "none.toml"))
    monkeypatch.setenv("GPUCAMPUS_STATE", str(tmp_path))
    monkeypatch.setattr("deploy.build_images.connect", object)
    assert images.main(words) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert text in finding
