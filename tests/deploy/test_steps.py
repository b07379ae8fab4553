import sys
from pathlib import Path

import pytest

from deploy.steps import Problem, call, step


def test_a_step_is_one_line_with_its_time_and_its_note(capsys: pytest.CaptureFixture[str]):
    with step("Proxy") as note:
        note.text = "runs already"
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.split() == ["Proxy", "0.0", "s", "runs", "already"]


def test_a_step_that_breaks_says_so_on_its_line(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ZeroDivisionError), step("Proxy"):
        raise ZeroDivisionError
    assert capsys.readouterr().out.split() == ["Proxy", "failed"]


def test_a_command_that_fails_is_told_with_its_last_words_and_its_log(tmp_path: Path):
    log = tmp_path / "log/setup.log"
    call([sys.executable, "-c", "print('before')"], log=log)
    with pytest.raises(Problem) as caught:
        call([sys.executable, "-c", "raise SystemExit('no space left')"], log=log)
    assert "no space left" in str(caught.value)
    assert str(log) in str(caught.value)
    assert "before" not in str(caught.value), "an earlier command's words are not this one's"
    assert "before" in log.read_text()
