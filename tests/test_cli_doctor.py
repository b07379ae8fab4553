"""The command `gpucampus doctor`: a table or JSON, and a status that scripts can trust."""

import json
from collections.abc import Iterator

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
