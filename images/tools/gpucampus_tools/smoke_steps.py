"""The steps of the smoke test that one process can do, on a GPU if there is one; run as a program by smoke.py.

    python -m gpucampus_tools.smoke_steps DESCRIPTOR STEP...

Writes one JSON line for each step to the descriptor as soon as it is done. Importing PyTorch is the first step's work.
A step computes twice, on the device and on the CPU, or against what must come out: a GPU that answers wrongly fails.
"""

import json
import math
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["STEPS", "ImageFault", "Unsupported", "main"]

_MIB = 1 << 20
_ALLOCATED_MIB = 256
_WORKERS = 4
_ROWS = 32
_TRAINED = 3


class ImageFault(RuntimeError):  # noqa: N818 - it says whose fault
    """The image lacks something; no GPU has to do with it."""


class Unsupported(RuntimeError):  # noqa: N818
    """This version of PyTorch cannot do it, and need not."""


def load(_device: str) -> dict[str, object]:
    """Tell what was imported and which GPUs it can use."""
    cuda = torch.version.cuda
    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            gpus.append({"name": about.name, "capability": f"{about.major}.{about.minor}"})
    return {
        "torch": str(torch.__version__).partition("+")[0],
        "cuda": cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or "") if cuda else "",
        "gpus": gpus,
    }


def memory(device: str) -> str:
    """Allocate, fill, and read back at both ends."""
    block = torch.full((_ALLOCATED_MIB * _MIB // 4,), 3.0, device=device)
    if block[0].item() != 3.0 or block[-1].item() != 3.0:
        raise ValueError("what was written is not what is read")
    del block
    if device == "cuda":
        torch.cuda.empty_cache()
    return f"{_ALLOCATED_MIB} MiB"


def matmul(device: str) -> str:
    """Multiply, against the CPU's result in double precision."""
    torch.manual_seed(0)
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    worst = _difference((left.to(device) @ right.to(device)).double().cpu(), left.double() @ right.double())
    return _within(worst, 1e-2)


def autocast(device: str) -> str:
    """Multiply in half precision, as mixed-precision training does."""
    kind = torch.float16 if device == "cuda" else torch.bfloat16
    torch.manual_seed(0)
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    with torch.autocast(device_type=device, dtype=kind):
        found = left.to(device) @ right.to(device)
    if found.dtype is not kind:
        raise ValueError(f"the result is {found.dtype} and not {kind}")
    return _within(_difference(found.float().cpu(), left @ right), 0.05 * math.sqrt(256))


def conv(device: str) -> str:
    """Train a convolution for a few steps, here and on the CPU."""

    def made() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))

    return _trains_alike(made, (3, 16, 16), device)


class _LastOfLSTM(nn.Module):  # type: ignore[misc]
    """An LSTM whose last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Classify."""
        return self.head(self.lstm(rows)[0][:, -1])


def lstm(device: str) -> str:
    """Train an LSTM for a few steps, here and on the CPU."""
    return _trains_alike(_LastOfLSTM, (12, 8), device)


def compiled(device: str) -> str:
    """Compile a small function and compare it with itself uncompiled."""
    _need_compiler(device)

    def function(values: torch.Tensor) -> torch.Tensor:
        return torch.sin(values) * torch.cos(values) + values.relu()

    values = torch.linspace(-3, 3, 1000, device=device)
    try:
        found = torch.compile(function)(values)
    except RuntimeError as error:
        if "not yet supported" in str(error):  # PyTorch 2.0 with Python 3.11
            raise Unsupported(str(error)) from error
        raise
    return _within(_difference(found.cpu(), function(values).cpu()), 1e-4)


class _Blocks(Dataset):  # type: ignore[misc] # torch has no types where it is not installed
    """Blocks of a megabyte, each full of its own number."""

    def __len__(self) -> int:
        return 2 * _WORKERS * _WORKERS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((_MIB // 4,), float(index))


def loader(_device: str) -> str:
    """Load with worker processes, which hand tensors over in /dev/shm."""
    room = shutil.disk_usage("/dev/shm").total  # noqa: S108 - the point
    blocks = _Blocks()
    total = sum(batch.mean(dim=1).sum().item() for batch in DataLoader(blocks, batch_size=4, num_workers=_WORKERS))
    expected = sum(range(len(blocks)))
    if total != expected:
        raise ValueError(f"the workers' data add up to {total} and not to {expected}")
    return f"{_WORKERS} workers, /dev/shm has {room // _MIB} MiB"


STEPS: Mapping[str, Callable[[str], object]] = {
    "import": load,
    "memory": memory,
    "matmul": matmul,
    "autocast": autocast,
    "conv": conv,
    "lstm": lstm,
    "compile": compiled,
    "loader": loader,
}


def _need_compiler(device: str) -> None:
    """Name what is missing for generated code: C++ for the CPU's, C for the starters of the GPU's, Python's headers."""
    names = ("cc", "gcc", "clang") if device == "cuda" else ("g++", "clang++")
    if not any(map(shutil.which, (*names, os.environ.get("CC" if device == "cuda" else "CXX", "")))):
        raise ImageFault(f"the image has none of the compilers {', '.join(names)}")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise ImageFault("the image lacks Python.h (Debian: libpython3-dev)")


def _trains_alike(made: Callable[[], nn.Module], shape: tuple[int, ...], device: str) -> str:
    """Train a model from the same start on the device and on the CPU; the losses must agree and fall."""
    here, reference = (_losses(made, shape, where) for where in (device, "cpu"))
    worst = max(abs(one - other) for one, other in zip(here, reference, strict=True))
    if not here[-1] < here[0]:
        raise ValueError(f"training does not help: the losses are {here}")
    return f"loss {here[0]:.4f} to {here[-1]:.4f}, {_within(worst, 1e-2)}"


def _losses(made: Callable[[], nn.Module], shape: tuple[int, ...], device: str) -> list[float]:
    torch.manual_seed(0)
    model, rows, labels = made(), torch.randn(_ROWS, *shape), torch.randint(0, 4, (_ROWS,))
    model, rows, labels = model.to(device), rows.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(_TRAINED):
        loss = nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max().item())


def _within(worst: float, allowed: float) -> str:
    if not worst <= allowed:  # so that a NaN fails
        raise ValueError(f"off by {worst:.2g} from the right result, allowed is {allowed:.2g}")
    return f"off by {worst:.1g}"


def main() -> int:
    """Do the steps named on the command line, one after another."""
    descriptor, names = int(sys.argv[1]), sys.argv[2:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in names:
        began = time.monotonic()
        answer: dict[str, object] = {"step": name}
        try:
            answer |= {"status": "ok", "detail": STEPS[name](device)}
        except Unsupported as error:
            answer |= {"status": "unsupported", "detail": str(error)}
        except Exception as error:  # noqa: BLE001 - a step that fails is a result
            fault = "image" if isinstance(error, ImageFault) else ""
            text = str(error) if fault else f"{type(error).__name__}: {error}"
            answer |= {"status": "failed", "detail": text, "fault": fault}
        answer["seconds"] = time.monotonic() - began
        os.write(descriptor, json.dumps(answer).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)  # what libraries do as they are unloaded is no part of the test


if __name__ == "__main__":
    sys.exit(main())
