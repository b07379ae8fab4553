"""The command `gpucampus doctor`: a table or JSON, and a status that scripts can trust."""

import json
from collections.abc import Iterator
from threading import Event

import pytest
from typer.testing import CliRunner

from spawner.cli import app, health
from spawner.doctor import Check, Machine
from spawner.doctor.machine import Later, fail, ok, warn
from spawner.findings import Finding

FINE, OLD, GONE = ok("engine", "Docker answers"), warn("disk", "86 % full", "make room"), fail("homes", "gone", "mount")


@pytest.fixture
def looks(monkeypatch):
    """Have the doctor find given things."""

    def find(*findings: Finding) -> None:
        def check(finding: Finding) -> Check:
            def look(_machine: Machine) -> Iterator[Finding]:
                yield finding

            return Check(name=finding.check, look=look, hangs="wait", needs_settings=False)

        nobody = Machine(engine=Later(dict, missing=""), gpus=Later(dict, missing=""))  # type: ignore[arg-type]
        monkeypatch.setattr(health, "this_machine", lambda: nobody)
        monkeypatch.setattr(health, "CHECKS", tuple(check(finding) for finding in findings))

    return find


@pytest.mark.parametrize(
    ("findings", "status"),
    [((FINE,), 0), ((FINE, OLD), 0), ((FINE, OLD, GONE), 1)],
    ids=["fine", "warned", "failed"],
)
def test_only_a_failure_ends_with_1(looks, findings, status):
    looks(*findings)
    asked = CliRunner().invoke(app, ["doctor", "--json"])
    assert asked.exit_code == status
    answer = json.loads(asked.stdout)
    assert [check["status"] for check in answer["checks"]] == [finding.status.value for finding in findings]
    assert answer["findings"] == (["homes: gone"] if status else [])


def test_the_table_says_what_to_do(looks):
    looks(FINE, OLD, GONE)
    asked = CliRunner().invoke(app, ["doctor"])
    assert asked.exit_code == 1
    for word in ("Docker answers", "86 % full", "make room", "mount", "1 fail, 1 warn, 1 ok"):
        assert word in asked.stdout


def test_a_check_that_hangs_does_not_hang_the_command(looks, monkeypatch):
    never = Event()

    def hangs(_machine: Machine) -> Iterator[Finding]:
        never.wait()
        yield FINE

    looks()
    check = Check(name="homes", look=hangs, hangs="mount it again", needs_settings=False, limit_s=0.2)
    monkeypatch.setattr(health, "CHECKS", (check,))
    asked = CliRunner().invoke(app, ["doctor", "--json"])
    never.set()
    assert asked.exit_code == 1
    (found,) = json.loads(asked.stdout)["checks"]
    assert (found["text"], found["remedy"]) == ("this check did not come back within 0.2 s", "mount it again")


def test_with_broken_settings_and_no_engine_the_rest_is_looked_at(tmp_path, monkeypatch):
    path = tmp_path / "settings.toml"
    path.write_text("version = 1\n[hub]\nnmae = 'x'\n")
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    asked = CliRunner().invoke(app, ["doctor", "--json"])
    assert asked.exit_code == 1
    found = {row["check"]: row for row in json.loads(asked.stdout)["checks"]}
    assert found["settings"]["status"] == found["engine"]["status"] == "fail"
    assert "nmae" in found["settings"]["text"]
    assert {"driver", "toolkit", "time"} <= set(found)
    assert not any(name.startswith(("disk", "homes", "ports")) for name in found), "these need settings"
