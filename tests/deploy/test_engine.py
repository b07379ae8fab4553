"""The engine that `make run` starts by itself, where no systemd does."""

from pathlib import Path

import pytest

from deploy import engine


@pytest.mark.parametrize(
    ("content", "comm", "stays"),
    [
        pytest.param("812", "dockerd", True, id="runs"),
        pytest.param("812", "nginx", False, id="its-number-is-another-s-now"),
        pytest.param("812", None, False, id="gone"),
        pytest.param("", None, False, id="half-written"),
    ],
)
def test_an_engine_s_pid_file_of_before_a_crash_is_in_nobody_s_way(
    content: str, comm: str | None, stays: bool, tmp_path: Path
):
    file, process = tmp_path / "dockerd.own.pid", tmp_path / "proc/812"
    file.write_text(content)
    if comm is not None:
        process.mkdir(parents=True)
        (process / "comm").write_text(f"{comm}\n")
    engine._forget_dead(file, tmp_path)
    assert file.exists() is stays


def test_no_pid_file_is_no_trouble(tmp_path: Path):
    engine._forget_dead(tmp_path / "none.pid")
