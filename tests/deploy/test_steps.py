import os
import pty
import re
import subprocess
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


LIVE = """
import threading
from deploy.steps import step, tell
tell("nobody listens")
with step("Image cpu") as note:
    tell("step 2/7")
    threading.Event().wait(1.1)
    note.text = "built"
"""


def test_on_a_terminal_a_long_step_shows_time_and_progress_and_ends_as_everywhere():
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", LIVE], stdout=theirs, check=True, timeout=30)
        shown = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert re.search(r"\rImage cpu +1 s  step 2/7", shown)
    assert "nobody" not in shown
    assert re.fullmatch(
        r"Image cpu +1\.\d s  built\r\n",
        shown.rpartition("\x1b[K")[0].rpartition("\r")[2] + shown.rpartition("\x1b[K")[2],
    )


def test_in_a_log_a_step_is_its_one_line():
    done = subprocess.run([sys.executable, "-c", LIVE], capture_output=True, text=True, check=True, timeout=30)
    assert re.fullmatch(r"Image cpu +1\.\d s  built\n", done.stdout)
