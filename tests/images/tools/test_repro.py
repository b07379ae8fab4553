"""Records of what a run depends on."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from gpucampus_tools import repro


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a program and a folder of data; the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(repro, "_seed", None)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "anna")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "anna@example.org")
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one.csv").write_text("1\n")
    (tmp_path / ".gitignore").write_text("*.json\ndata\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *command], check=True)
    return tmp_path


def test_nothing_differs_from_a_record_just_made(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert repro.main(["record", "--data", "data", "--seed", "42"]) == 0
    assert repro.main(["check"]) == 0
    assert "Nothing differs." in capsys.readouterr().out


def test_a_record_says_all_that_a_run_depends_on(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUPYTER_IMAGE_SPEC", "sha256:abc")
    found = repro.record("repro.json", data=["data"], seed=42)
    assert found == json.loads(Path("repro.json").read_text())
    assert found["image"]["id"] == "sha256:abc"
    assert found["seed"] == 42
    assert len(found["git"]["revision"]) == 40
    assert found["git"]["dirty"] is False
    assert list(found["data"]) == [str(folder / "data")]
    assert found["packages"]["pytest"] == pytest.__version__


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(lambda here: (here / "data/one.csv").write_text("2\n"), "data: {here}/data: ", id="contents"),
        pytest.param(lambda here: (here / "data/one.csv").rename(here / "data/x"), "data: {here}/data: ", id="name"),
        pytest.param(
            lambda here: (here / "train.py").write_text("print(2)\n"), "git: dirty: False, now True", id="dirty"
        ),
        pytest.param(
            lambda here: subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "x"], check=True),
            "git: revision: ",
            id="revision",
        ),
    ],
)
def test_each_difference_is_named(folder: Path, capsys: pytest.CaptureFixture[str], change, named: str):
    repro.record("repro.json", data=["data"])
    change(folder)
    assert repro.main(["check"]) == 1
    assert named.format(here=folder) in capsys.readouterr().out


def test_image_packages_gpus_and_variables_are_compared():
    old = {"image": {"id": "a"}, "packages": {"numpy": "1", "gone": "2"}, "gpus": ["A100, 550"], "time": "x", "seed": 1}
    now: dict[str, object] = {
        "image": {"id": "b"},
        "packages": {"numpy": "1.1", "new": "3"},
        "gpus": [],
        "time": "y",
        "seed": None,
    }
    assert repro.differences(old, now) == [
        "gpus: A100, 550, now none",
        "image: id: a, now b",
        "packages: gone: 2, now none",
        "packages: new: none, now 3",
        "packages: numpy: 1, now 1.1",
    ]


def test_flags_are_compared_by_a_program_that_has_them():
    old = {"seed": 1, "flags": {"cudnn.benchmark": False}}
    assert repro.differences(old, {"seed": None, "flags": None}) == []
    assert repro.differences(old, {"seed": 2, "flags": {"cudnn.benchmark": True}}) == [
        "flags: cudnn.benchmark: False, now True",
        "seed: 1, now 2",
    ]


def test_a_seed_is_recorded_and_makes_the_same_numbers(folder: Path):
    repro.seed_everything(7)
    first = random.random()
    repro.seed_everything(7)
    assert random.random() == first
    assert repro.gather()["seed"] == 7


def test_what_is_no_record_is_said(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert repro.main(["check", "train.py"]) == 2
    assert "is no record" in capsys.readouterr().err
    assert repro.main(["check", "nothing.json"]) == 2
    assert "nothing.json: No such file" in capsys.readouterr().err
