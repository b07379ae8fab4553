"""Steps of `make run`: one line each, with its time; and where the state folder is."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

__all__ = ["ROOT", "Problem", "call", "exit_with", "state_folder", "step"]

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 44  # the same as in deploy/run


class Problem(RuntimeError):  # noqa: N818 - it is told to a person, by this name
    """A step cannot be done; the text says what, why, and what to do."""


class Note:
    """What a step adds to its line when it is done."""

    def __init__(self) -> None:
        self.text = ""


def state_folder() -> Path:
    """The folder of everything that `make run` keeps: GPUCAMPUS_STATE, else .state in the repository."""
    return Path(os.environ.get("GPUCAMPUS_STATE", ROOT / ".state")).resolve()


@contextmanager
def step(name: str) -> Iterator[Note]:
    """Show a step's name while it runs, then its time and its note."""
    note, start = Note(), time.monotonic()
    print(f"{name:<{WIDTH}}", end="", flush=True)
    try:
        yield note
    except BaseException:
        print(" failed", flush=True)
        raise
    print(f"{time.monotonic() - start:5.1f} s  {note.text}".rstrip(), flush=True)


def call(command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Run a command with its output in the log; Problem shows the end of it where the command fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        before = output.tell()
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, cwd=cwd, env=env
        )
    if done.returncode:
        with log.open("rb") as file:
            file.seek(before)
            tail = "\n".join(file.read().decode(errors="replace").splitlines()[-20:])
        raise Problem(f"{Path(command[0]).name} failed ({done.returncode}); all of its output is in {log}.\n{tail}")


def exit_with(error: Exception) -> NoReturn:
    """End the program with the error's text on its own lines."""
    sys.exit(f"\n{error}")
