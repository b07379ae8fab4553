"""A training log: one JSON object a line, which a person can read and Logstash, Fluent Bit or pandas can take in.

    from gpucampus_tools.trainlog import TrainLog

    with TrainLog("run-{rank}.jsonl") as log:
        for step, batch in enumerate(batches):
            loss = train(batch)
            log.step(step, loss=loss)

Each line has time, node, rank, step, step_time_ms, loss and gpu_util; further values are added by name. What is not
known is null, never left out.
"""

import argparse
import json
import math
import os
import socket
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

__all__ = ["FIELDS", "TrainLog", "main", "summary"]

FIELDS = ("time", "node", "rank", "step", "step_time_ms", "loss", "gpu_util")


class TrainLog:
    """Writes lines to a file, each at once; `{rank}` in its name gives each rank a file of its own.

    Without `{rank}` the ranks of one machine may share a file. Ranks of several machines may not: a network file
    system does not append in one step.
    """

    def __init__(self, path: str | Path, *, rank: int | None = None, node: str | None = None) -> None:
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.node = node or socket.gethostname()
        self.path = Path(str(path).replace("{rank}", str(self.rank)))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._gpu = _Gpu(os.environ)
        self._last = time.perf_counter()

    def step(self, step: int, *, loss: Any = None, step_time_ms: float | None = None, **more: Any) -> None:
        """Write the line of a step; its time is that since the line before, unless it is given."""
        now = time.perf_counter()
        took = (now - self._last) * 1000 if step_time_ms is None else step_time_ms
        self._last = now
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "node": self.node,
            "rank": self.rank,
            "step": step,
            "step_time_ms": round(took, 3),
            "loss": _number(loss),
            "gpu_util": self._gpu.percent(),
        }
        line |= {name: _number(value) if hasattr(value, "item") else value for name, value in more.items()}
        if loss is not None and line["loss"] is None:
            line["loss_was"] = str(float(loss))  # JSON knows no nan and no infinity, but a reader must see them
        os.write(self._file, (json.dumps(line, allow_nan=False, default=str) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Gpu:
    """How busy this rank's GPU is, as NVIDIA's library says; nothing where there is none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._handle: Any = None
        try:
            import pynvml  # noqa: PLC0415 - a log works without it

            pynvml.nvmlInit()
        except Exception:  # noqa: BLE001 - whatever keeps the library from loading, training goes on
            return
        self._nvml = pynvml
        name = visible(environment.get("CUDA_VISIBLE_DEVICES"), int(environment.get("LOCAL_RANK", "0")))
        try:
            by_index = name.isdecimal()
            get = pynvml.nvmlDeviceGetHandleByIndex if by_index else pynvml.nvmlDeviceGetHandleByUUID
            self._handle = get(int(name) if by_index else name)
        except pynvml.NVMLError:
            self._handle = None

    def percent(self) -> int | None:
        if self._handle is None:
            return None
        try:
            return int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except self._nvml.NVMLError:  # MIG instances have no such figure
            return None


def visible(devices: str | None, local_rank: int) -> str:
    """Which of the visible GPUs a rank of this machine uses: an index or a UUID."""
    named = [name.strip() for name in (devices or "").split(",") if name.strip()]
    return named[local_rank] if local_rank < len(named) else str(local_rank)


def summary(lines: Iterable[str]) -> tuple[dict[int, dict[str, Any]], int]:
    """Sum up a log by rank, and count the lines that are none."""
    ranks: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    unreadable = 0
    for text in lines:
        try:
            line = json.loads(text)
            ranks[line["rank"]].append({name: line[name] for name in FIELDS})
        except (ValueError, KeyError, TypeError):
            unreadable += bool(text.strip())
    return {rank: _of_rank(found) for rank, found in sorted(ranks.items())}, unreadable


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a summary of logs."""
    parser = argparse.ArgumentParser(prog="trainlog", description="Sum up training logs, rank by rank.")
    parser.add_argument("files", nargs="+", type=Path)
    try:
        text = "\n".join(path.read_text(encoding="utf-8") for path in parser.parse_args(arguments).files)
    except OSError as error:
        print(f"{error.filename} cannot be read: {error.strerror}.", file=sys.stderr)
        return 1
    ranks, unreadable = summary(text.splitlines())
    print("rank  steps  ms/step  slowest      loss  GPU %")
    for rank, found in ranks.items():
        print(f"{rank:4}  {found['steps']:5}  {_shown(found['ms'], 7)}  {_shown(found['slowest'], 7)}  ", end="")
        print(f"{_shown(found['loss'], 8, 4)}  {_shown(found['gpu'], 5, 0)}")
    if unreadable:
        print(f"{unreadable} lines are no lines of such a log.", file=sys.stderr)
    return 1 if unreadable or not ranks else 0


def _of_rank(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times = [line["step_time_ms"] for line in lines if line["step_time_ms"] is not None]
    busy = [line["gpu_util"] for line in lines if line["gpu_util"] is not None]
    return {
        "steps": len(lines),
        "ms": statistics.fmean(times) if times else None,
        "slowest": max(times, default=None),
        "loss": lines[-1]["loss"],
        "gpu": statistics.fmean(busy) if busy else None,
    }


def _number(value: Any) -> float | None:
    found = None if value is None else float(value)
    return found if found is not None and math.isfinite(found) else None


def _shown(value: float | None, width: int, digits: int = 1) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"
