"""`model-loader`: what is in a file of weights, and how much a model with them computes.

A .pt file is read as weights only, so that none of its code runs; of a .safetensors file nothing but its table is read
as long as no model is asked for.
"""

import argparse
import importlib
import json
import math
import mmap
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucampus_tools import visible

__all__ = ["LoadError", "Tensor", "main", "read_table", "report", "weights"]

_MOST_TABLE_BYTES = 100_000_000  # the format's own limit
_TYPES = {  # in the words of safetensors: PyTorch's name, and bytes
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U64": ("uint64", 8),
    "U32": ("uint32", 4),
    "U16": ("uint16", 2),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
_WARM_UP, _RUNS = 3, 20


class LoadError(Exception):
    """A file or a model cannot be used; the text is for the person at the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a file: its type in the words of safetensors, and where its bytes are behind the table."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0
    end: int = 0

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def read_table(path: Path) -> tuple[int, tuple[Tensor, ...]]:
    """Read the table of a .safetensors file: where the data begins, and what is in it. Nothing in it is believed."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MOST_TABLE_BYTES, size - 8):
            raise LoadError(f"{path} is no .safetensors file: it has no table at its beginning.")
        text = file.read(length)
    try:
        said = {name: one for name, one in json.loads(text).items() if name != "__metadata__"}
        found = tuple(_tensor(name, one) for name, one in said.items())
        broken = [one.name for one in found if not _fits(one, size - 8 - length)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{path} is no .safetensors file: its table cannot be read.") from error
    if broken:
        raise LoadError(f"{path} is damaged or cut short: {broken[0]} lies outside of it or has a wrong size.")
    return 8 + length, found


def weights(path: Path) -> dict[str, Any]:
    """The tensors of a file by their names, in the memory of the host."""
    import torch  # noqa: PLC0415 - takes seconds; a table is read without it

    if path.suffix == ".safetensors":
        start, table = read_table(path)
        return dict(_mapped(path, start, table, torch))
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise LoadError(
            f"{path} holds more than weights, or is no file of PyTorch. To load all of it would run whatever"
            " code it brings: ask for the state_dict alone."
        ) from error
    found = dict(_tensors(loaded))
    if not found:
        raise LoadError(f"{path} holds no tensors.")
    return found


def report(tensors: Sequence[Tensor]) -> str:
    """What is in a file, by type."""
    lines = [f"{len(tensors)} tensors, {sum(one.elements for one in tensors):,} parameters, {_size(_bytes(tensors))}"]
    for dtype in sorted({one.dtype for one in tensors}):
        of_it = [one for one in tensors if one.dtype == dtype]
        lines.append(f"  {dtype}: {sum(one.elements for one in of_it):,} parameters, {_size(_bytes(of_it))}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Report on a file, and on a model with its weights if one is named."""
    parser = argparse.ArgumentParser(prog="model-loader", description="Say what is in a file of weights.")
    parser.add_argument("file", type=Path, help="a .pt or .safetensors file")
    parser.add_argument("--model", help="MODULE:FUNCTION that makes the model, looked for in this folder, too")
    parser.add_argument("--input", help="the shape of its input, as 1x3x224x224: counts the operations of a pass")
    parser.add_argument("--compile", action="store_true", help="measure what torch.compile gains")
    chosen = parser.parse_args(arguments)
    if (chosen.input or chosen.compile) and not chosen.model:
        parser.error("--input and --compile need --model: a file of weights does not say how they are used")
    if chosen.compile and not chosen.input:
        parser.error("--compile needs --input")
    visible.show()
    try:
        if chosen.model:
            _report_model(chosen.file, chosen.model, chosen.input, compiled=chosen.compile)
        elif chosen.file.suffix == ".safetensors":
            print(report(read_table(chosen.file)[1]))
        else:
            print(report([_described(name, tensor) for name, tensor in weights(chosen.file).items()]))
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename or chosen.file}: {error.strerror}.", file=sys.stderr)
        return 1
    return 0


def _report_model(path: Path, named: str, shape: str | None, *, compiled: bool) -> None:
    import torch  # noqa: PLC0415 - takes seconds

    tensors = weights(path)
    print(report([_described(name, tensor) for name, tensor in tensors.items()]))
    model = _model(named)
    differing = model.load_state_dict(tensors, strict=False)
    for what, names in (("not in the file", differing.missing_keys), ("not in the model", differing.unexpected_keys)):
        if names:
            raise LoadError(f"The file does not fit {named}: {len(names)} are {what}, {names[0]} for one.")
    if shape is None:
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).eval()
    given = torch.randn(_shape(shape), device=device)
    with torch.no_grad():
        print(f"one pass of {shape}: {_operations(model, given)}")
        if compiled:
            plain, fast = _time(model, given, torch), _time(torch.compile(model), given, torch)
            print(f"on {device}: {plain:.2f} ms, compiled {fast:.2f} ms: {plain / fast:.2f} times as fast")


def _operations(model: Any, given: Any) -> str:
    try:
        from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - see above
    except ImportError:  # PyTorch 2.0
        model(given)
        return "this PyTorch has no counter of operations; 2.1 and newer have one"
    with FlopCounterMode(display=False) as counter:
        model(given)
    count = counter.get_total_flops()
    return f"{count / 1e9:,.2f} GFLOP" if count >= 1e9 else f"{count / 1e6:,.3f} MFLOP"


def _time(model: Callable[[Any], Any], given: Any, torch: Any) -> float:
    """The median of several passes, in ms, after some that compile and warm up."""
    took = []
    for run in range(_WARM_UP + _RUNS):
        begun = time.perf_counter()
        model(given)
        if given.is_cuda:
            torch.cuda.synchronize()
        if run >= _WARM_UP:
            took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


def _model(named: str) -> Any:
    module, _, function = named.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, ValueError) as error:
        raise LoadError(
            f"--model {named}: {error}. Give MODULE:FUNCTION, as in torchvision.models:resnet18."
        ) from error


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("x"))
    except ValueError as error:
        raise LoadError(f"--input {text}: give the numbers of a shape with x between them, as 1x3x224x224.") from error


def _mapped(path: Path, start: int, table: Sequence[Tensor], torch: Any) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    for one in table:
        dtype = getattr(torch, _TYPES[one.dtype][0], None)
        if dtype is None:
            raise LoadError(
                f"{path} holds numbers of type {one.dtype}, which PyTorch {torch.__version__} does not know."
            )
        if one.elements:
            flat = torch.frombuffer(data, dtype=dtype, count=one.elements, offset=start + one.begin)
        else:
            flat = torch.empty(0, dtype=dtype)
        yield one.name, flat.reshape(one.shape)


def _tensors(loaded: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in whatever a checkpoint is made of; those of a state_dict keep the names that they have in it."""
    if hasattr(loaded, "element_size"):
        yield above or "tensor", loaded
    elif isinstance(loaded, Mapping):
        for name, value in loaded.items():
            whole = isinstance(value, Mapping) and not above and name in {"state_dict", "model_state_dict", "model"}
            yield from _tensors(value, "" if whole else f"{above}.{name}" if above else str(name))
    elif isinstance(loaded, list | tuple):
        for number, value in enumerate(loaded):
            yield from _tensors(value, f"{above}.{number}" if above else str(number))


def _described(name: str, tensor: Any) -> Tensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    known = next((short for short, (long, _) in _TYPES.items() if long == dtype), dtype)
    return Tensor(name=name, dtype=known, shape=tuple(tensor.shape), end=tensor.numel() * tensor.element_size())


def _tensor(name: str, said: Mapping[str, Any]) -> Tensor:
    begin, end = said["data_offsets"]
    return Tensor(name=name, dtype=said["dtype"], shape=tuple(said["shape"]), begin=begin, end=end)


def _fits(one: Tensor, size: int) -> bool:
    """Whether a tensor lies in the file and is as large as its shape says."""
    inside = 0 <= one.begin <= one.end <= size and all(length >= 0 for length in one.shape)
    return inside and one.dtype in _TYPES and one.end - one.begin == one.elements * _TYPES[one.dtype][1]


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.end - one.begin for one in tensors)


def _size(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.2f} MB"
