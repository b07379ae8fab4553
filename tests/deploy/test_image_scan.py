"""A scan that could not look is never one that found nothing."""

import json

import pytest

from deploy import image_scan
from deploy.image_scan import Hole, judge_python, python_holes, upgrades
from deploy.image_tools import ImageProblem
from spawner.core.model import Variant

CPU = Variant(name="cpu", title="CPU", image="gpucampus/cpu:1")
FINE = {"name": "idna", "version": "3.1", "vulns": []}
HOLED = {"name": "torch", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1", "2.2"]}]}
APT = """NOTE: This is only a simulation!
Inst libssl3 [3.0.1] (3.0.2 Debian-Security:12/oldstable-security [amd64])
Inst tzdata [2024a] (2024b Debian:12-updates/oldstable-updates [all])
Conf libssl3 (3.0.2 Debian-Security:12/oldstable-security [amd64])
"""


def test_a_hole_is_named_with_what_mends_it():
    found = judge_python({"dependencies": [FINE, HOLED]})
    assert found == (Hole(package="torch", version="2.0", what="PYSEC-1", fixed="2.1, 2.2"),)
    assert judge_python({"dependencies": [FINE]}) == ()


@pytest.mark.parametrize(
    "dependencies",
    [
        pytest.param([{"name": "idna", "skip_reason": "the service did not answer"}], id="all-skipped"),
        pytest.param([FINE, {"name": "torch", "skip_reason": "not on PyPI"}], id="one-skipped"),
        pytest.param([], id="nothing-looked-at"),
    ],
)
def test_what_was_skipped_is_not_free_of_holes(dependencies):
    with pytest.raises(ImageProblem, match="nothing is known"):
        judge_python({"dependencies": dependencies})


@pytest.mark.parametrize("said", ["", "ERROR: no connection"])
def test_a_service_that_does_not_answer_is_a_problem(monkeypatch, tmp_path, said):
    monkeypatch.setattr(image_scan, "python_tool", lambda name: tmp_path / name)
    monkeypatch.setattr(image_scan, "said_by", lambda *_a, **_k: said)
    with pytest.raises(ImageProblem, match="did not answer"):
        python_holes(CPU)


def test_the_whole_lock_is_asked_about_and_strictly(monkeypatch, tmp_path):
    asked: list[list[str]] = []

    def said_by(command, **_kwargs):
        asked.append(command)
        return json.dumps({"dependencies": [FINE]})

    monkeypatch.setattr(image_scan, "python_tool", lambda name: tmp_path / name)
    monkeypatch.setattr(image_scan, "said_by", said_by)
    assert python_holes(CPU) == ()
    assert "--strict" in asked[0]
    assert asked[0][-1].endswith("images/cpu/requirements.lock")


def test_only_what_the_security_archive_has_is_a_hole():
    assert upgrades(APT) == (Hole(package="libssl3", version="3.0.1", what="Debian security update", fixed="3.0.2"),)
