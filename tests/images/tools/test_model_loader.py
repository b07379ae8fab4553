"""Files of weights. What needs PyTorch is tried in the built image: tests/images/test_tools.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpucampus_tools import ddp_launch, model_loader


def safetensors(path: Path, table: dict[str, Any] | bytes, data: bytes) -> Path:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


WEIGHT = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}


def test_the_table_of_a_file_is_read_without_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bias = {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]}
    table = {"__metadata__": {"by": "x"}, "weight": WEIGHT, "bias": bias}
    file = safetensors(tmp_path / "a.safetensors", table, bytes(20))
    assert model_loader.main([str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 tensors, 8 parameters, 0.00 MB",
        "  F16: 6 parameters, 0.00 MB",
        "  F32: 2 parameters, 0.00 MB",
    ]


@pytest.mark.parametrize(
    ("table", "size", "said"),
    [
        pytest.param({"weight": WEIGHT}, 11, "cut short: weight", id="cut"),
        pytest.param({"weight": WEIGHT | {"shape": [2, 2]}}, 12, "wrong size", id="shape"),
        pytest.param({"weight": WEIGHT | {"data_offsets": [-12, 0]}}, 12, "lies outside", id="negative"),
        pytest.param({"weight": WEIGHT | {"dtype": "X"}}, 12, "damaged", id="type"),
        pytest.param({"weight": {"dtype": "F16"}}, 12, "its table cannot be read", id="incomplete"),
        pytest.param(b"[1]", 0, "its table cannot be read", id="no-table"),
        pytest.param(b"no json", 0, "its table cannot be read", id="no-json"),
    ],
)
def test_nothing_in_a_table_is_believed(tmp_path: Path, capsys, table: Any, size: int, said: str):
    file = safetensors(tmp_path / "a.safetensors", table, bytes(size))
    assert model_loader.main([str(file)]) == 1
    assert said in capsys.readouterr().err


def test_a_huge_table_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 64)
    assert model_loader.main([str(tmp_path / "a.safetensors")]) == 1
    assert "no .safetensors file" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--input", "1x3"], ["--compile"], ["--model", "a:b", "--compile"]])
def test_options_that_say_too_little_are_refused(tmp_path: Path, options: list[str]):
    with pytest.raises(SystemExit):
        model_loader.main([str(tmp_path / "a.pt"), *options])


def test_the_ranks_meet_on_this_machine_whatever_its_network(tmp_path: Path):
    command = ddp_launch.command(2, 29501, ["--epochs", "1"])
    assert "--master_addr=127.0.0.1" in command
    assert "--standalone" not in command
    assert command[-3].endswith("/ddp_test.py")
