"""What a run depends on: recorded with it, and compared later.

On a command line, `repro record` and `repro check`. In a program, which alone knows its seeds and flags:

    from gpucampus_tools import repro

    repro.seed_everything(42)
    repro.record("run.json", data=["data/train"])
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucampus_tools import visible

__all__ = ["RecordError", "check", "differences", "gather", "main", "record", "seed_everything"]

_FORM = 1
_DESCRIPTION = Path("/etc/gpucampus/variant.json")
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTHONHASHSEED")
_PROGRAM_ONLY = ("seed", "flags")  # a command line starts a program of its own, which has no seed
_QUERY = "--query-gpu=name,driver_version,memory.total"
_seed: int | None = None


class RecordError(Exception):
    """A record cannot be made or read; the text is for whoever asked for it."""


def seed_everything(seed: int, *, deterministic: bool = True) -> None:
    """Seed Python, numpy and PyTorch, and choose algorithms that always give the same answer, which may be slower."""
    global _seed  # noqa: PLW0603 - the generators are global as well
    _seed = seed
    random.seed(seed)
    if numpy := _imported("numpy"):
        numpy.random.seed(seed % 2**32)
    if torch := _imported("torch"):
        torch.manual_seed(seed)
        torch.backends.cudnn.benchmark = not deterministic
        torch.backends.cudnn.deterministic = deterministic
        if deterministic:  # read when cuBLAS is first used
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(deterministic, warn_only=True)


def gather(data: Iterable[str | Path] = (), seed: int | None = None) -> dict[str, Any]:
    """All that is recorded, as it is now."""
    return {
        "form": _FORM,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": {"id": os.environ.get("JUPYTER_IMAGE_SPEC"), **_variant()},
        "git": _git(Path.cwd()),
        "data": {str(Path(path).absolute()): _sha256(Path(path)) for path in data},
        "seed": _seed if seed is None else seed,
        "flags": _flags(),
        "environment": {name: os.environ.get(name) for name in _VARIABLES},
        "python": sys.version.split()[0],
        "packages": _packages(),
        "gpus": _lines("nvidia-smi", _QUERY, "--format=csv,noheader") or [],
    }


def record(path: str | Path, *, data: Iterable[str | Path] = (), seed: int | None = None) -> dict[str, Any]:
    """Write a record; return it."""
    found = gather(data, seed)
    Path(path).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


def check(path: str | Path) -> list[str]:
    """What differs now from a record, each in a line."""
    try:
        old = json.loads(Path(path).read_text(encoding="utf-8"))
        if old["form"] != _FORM:
            raise RecordError(f"{path} is a record of form {old['form']}; this program reads form {_FORM}.")
        now = gather(old["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is no record: repro record makes one.") from error
    return differences(old, now)


def differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compare two records; what a command line cannot know is left out where it is missing now."""
    before, after = dict(_flat(old)), dict(_flat(now))
    left_out = {"time"} | {name for name in _PROGRAM_ONLY if now.get(name) is None}
    names = sorted(name for name in before.keys() | after.keys() if name.split(": ")[0] not in left_out)
    return [
        f"{name}: {_shown(before.get(name))}, now {_shown(after.get(name))}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """`repro record` and `repro check`: 0 if nothing differs, 1 if something does, 2 if it cannot be said."""
    parser = argparse.ArgumentParser(prog="repro", description="Record what a run depends on, and check it later.")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("record", help="write a record of how things are now")
    making.add_argument("file", nargs="?", default="repro.json")
    making.add_argument("--data", nargs="*", default=[], help="files and folders whose contents matter")
    making.add_argument("--seed", type=int, help="the seed that your program uses")
    checking = commands.add_parser("check", help="say what differs from a record")
    checking.add_argument("file", nargs="?", default="repro.json")
    chosen = parser.parse_args(arguments)
    visible.show()
    try:
        if chosen.command == "record":
            record(chosen.file, data=chosen.data, seed=chosen.seed)
            print(f"Recorded in {chosen.file}.")
            return 0
        found = check(chosen.file)
    except RecordError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    print("\n".join(found) or "Nothing differs.")
    return 1 if found else 0


def _imported(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None


def _variant() -> dict[str, Any]:
    try:
        said = json.loads(_DESCRIPTION.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: said.get(name) for name in ("variant", "torch", "cuda")}


def _git(folder: Path) -> dict[str, Any] | None:
    revision = _lines("git", "-C", str(folder), "rev-parse", "HEAD")
    if not revision:
        return None
    changes = _lines("git", "-C", str(folder), "status", "--porcelain") or []
    patch = "\n".join(_lines("git", "-C", str(folder), "diff", "HEAD") or [])
    return {
        "revision": revision[0],
        "dirty": bool(changes),
        "changed": [line[3:] for line in changes],
        "patch": hashlib.sha256(patch.encode()).hexdigest() if patch else None,
    }


def _sha256(path: Path) -> str | None:
    """The hash of a file, or of all names and contents below a folder; None where there is nothing."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not path.is_dir():
        return None
    total = hashlib.sha256()
    for below in sorted(found for found in path.rglob("*") if found.is_file()):
        total.update(f"{below.relative_to(path)}\0{_sha256(below)}\0".encode())
    return total.hexdigest()


def _flags() -> dict[str, Any] | None:
    """The flags of this program's PyTorch; None where it has not imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return {
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),  # seed_everything may have set it
        "float32 matmul precision": torch.get_float32_matmul_precision(),
    }


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        name = str(package.metadata["Name"]).lower().replace("_", "-")
        found.setdefault(name, package.version)  # the first on the path is the one that is imported
    return found


def _lines(*command: str) -> list[str] | None:
    """What a program prints; None where it is not there or fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.splitlines() if ran.returncode == 0 else None


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}: ")
        else:
            yield f"{above}{name}", value


def _shown(value: Any) -> str:
    return "none" if value in (None, []) else ", ".join(value) if isinstance(value, list) else str(value)
