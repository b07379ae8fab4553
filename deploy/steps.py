"""Steps of `make run`: one line each, with its time; and where the state folder is."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

__all__ = ["ROOT", "Problem", "call", "exit_with", "state_folder", "step", "tell"]

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 44  # the same as in deploy/run
CLEAR_REST = "\x1b[K"


class Problem(RuntimeError):  # noqa: N818 - it is told to a person, by this name
    """A step cannot be done; the text says what, why, and what to do."""


class Note:
    """What a step adds to its line: while it runs (`progress`), and when it is done (`text`)."""

    def __init__(self) -> None:
        self.text = self.progress = ""


_running: list[Note] = []


def tell(progress: str) -> None:
    """Say how far the step that runs has come; it shows on a terminal, and nowhere else."""
    if _running:
        _running[-1].progress = progress


def state_folder() -> Path:
    """The folder of everything that `make run` keeps: GPUCAMPUS_STATE, else .state in the repository."""
    return Path(os.environ.get("GPUCAMPUS_STATE", ROOT / ".state")).resolve()


@contextmanager
def step(name: str) -> Iterator[Note]:
    """Show a step's name while it runs, then its time and its note; on a terminal the time and the progress, too."""
    note, start, done = Note(), time.monotonic(), threading.Event()
    head = f"{name:<{WIDTH}}"
    print(head, end="", flush=True)
    clock = threading.Thread(target=_show, args=(head, note, start, done), daemon=True)
    _running.append(note)
    if sys.stdout.isatty():
        clock.start()
    try:
        yield note
    except BaseException:
        _end(clock, done, head)
        print(" failed", flush=True)
        raise
    finally:
        _running.remove(note)
    _end(clock, done, head)
    print(f"{time.monotonic() - start:5.1f} s  {note.text}".rstrip(), flush=True)


def _show(head: str, note: Note, start: float, done: threading.Event) -> None:
    """Write the line anew each second, never longer than the terminal is wide."""
    while not done.wait(1):
        columns = shutil.get_terminal_size().columns
        line = f"{head}{time.monotonic() - start:5.0f} s  {note.progress}"[: columns - 1]
        print(f"\r{line}{CLEAR_REST}", end="", flush=True)


def _end(clock: threading.Thread, done: threading.Event, head: str) -> None:
    done.set()
    if clock.ident is not None:
        clock.join()
        print(f"\r{head}{CLEAR_REST}", end="", flush=True)


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
