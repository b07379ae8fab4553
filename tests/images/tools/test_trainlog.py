"""The training log: lines that machines and people can read."""

import json
from pathlib import Path

import pytest

from gpucampus_tools import trainlog
from gpucampus_tools.trainlog import FIELDS, TrainLog


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_has_all_fields_and_those_added(tmp_path: Path):
    with TrainLog(tmp_path / "run.jsonl", node="node-3") as log:
        log.step(0, loss=1.5, step_time_ms=20, accuracy=0.5)
        log.step(1)
    first, second = lines(tmp_path / "run.jsonl")
    assert list(first) == [*FIELDS, "accuracy"]
    assert first | {"time": ""} == {
        "time": "",
        "node": "node-3",
        "rank": 0,
        "step": 0,
        "step_time_ms": 20,
        "loss": 1.5,
        "gpu_util": None,
        "accuracy": 0.5,
    }
    assert second["loss"] is None
    assert isinstance(second["step_time_ms"], float)


def test_each_rank_may_have_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "3")
    with TrainLog(tmp_path / "logs/rank-{rank}.jsonl") as log:
        log.step(0)
    assert lines(tmp_path / "logs/rank-3.jsonl")[0]["rank"] == 3


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_seen_and_stays_json(tmp_path: Path, loss: float):
    with TrainLog(tmp_path / "run.jsonl") as log:
        log.step(0, loss=loss)
    assert "NaN" not in (tmp_path / "run.jsonl").read_text()
    (line,) = lines(tmp_path / "run.jsonl")
    assert (line["loss"], line["loss_was"]) == (None, str(loss))


def test_a_log_goes_on_where_it_ended(tmp_path: Path):
    for step in range(2):
        with TrainLog(tmp_path / "run.jsonl") as log:
            log.step(step)
    assert [line["step"] for line in lines(tmp_path / "run.jsonl")] == [0, 1]


@pytest.mark.parametrize(
    ("devices", "rank", "wanted"),
    [
        pytest.param(None, 1, "1", id="all-visible"),
        pytest.param("GPU-a,GPU-b", 1, "GPU-b", id="by-uuid"),
        pytest.param("2, 3", 0, "2", id="by-index"),
        pytest.param("GPU-a", 1, "1", id="more-ranks-than-gpus"),
    ],
)
def test_a_rank_asks_for_its_own_gpu(devices: str | None, rank: int, wanted: str):
    assert trainlog.visible(devices, rank) == wanted


def test_a_summary_by_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for rank in (0, 1):
        with TrainLog(tmp_path / "run.jsonl", rank=rank) as log:
            log.step(0, loss=2, step_time_ms=10)
            log.step(1, loss=1, step_time_ms=30 + rank)
    assert trainlog.main([str(tmp_path / "run.jsonl")]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["0", "2", "20.0", "30.0", "1.0000", "-"],
        ["1", "2", "20.5", "31.0", "1.0000", "-"],
    ]


def test_a_cut_line_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "run.jsonl").write_text('{"time": "2026-\n')
    assert trainlog.main([str(tmp_path / "run.jsonl")]) == 1
    assert "1 lines are no lines" in capsys.readouterr().err
