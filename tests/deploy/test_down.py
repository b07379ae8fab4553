from pathlib import Path

import pytest

from deploy import down


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with a home in it, on a machine whose engine does not answer."""
    monkeypatch.setattr(down, "_client", lambda: None)
    monkeypatch.setattr(down, "remove_filters", lambda: "none")  # a hub of this machine keeps its own
    (tmp_path / "homes/student").mkdir(parents=True)
    (tmp_path / "homes/student/thesis.ipynb").write_text("{}")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "records.sqlite").write_text("")
    (tmp_path / "link").symlink_to(tmp_path.parent)
    return tmp_path


def test_clean_keeps_the_homes_and_says_how_to_remove_them(state: Path, capsys: pytest.CaptureFixture[str]):
    down.clean(state, homes=False)
    assert [path.name for path in state.iterdir()] == ["homes"]
    assert (state / "homes/student/thesis.ipynb").exists()
    assert "make clean HOMES=1" in capsys.readouterr().out


def test_clean_removes_the_homes_when_told_to(state: Path):
    down.clean(state, homes=True)
    assert list(state.iterdir()) == []


def test_clean_follows_no_link_out_of_the_state_folder(state: Path):
    beside = state.parent / "beside"
    beside.write_text("not ours")
    down.clean(state, homes=True)
    assert beside.read_text() == "not ours"


def test_stop_and_clean_go_through_where_nothing_was_ever_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(down, "_client", lambda: None)
    monkeypatch.setattr(down, "remove_filters", lambda: "none")
    down.stop(tmp_path / "never")
    down.clean(tmp_path / "never", homes=False)
    assert "did not run" in capsys.readouterr().out
