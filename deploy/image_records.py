"""Writes the book of records (spawner/core/trust.py): which image each variant is, and which digests are signed.

The build calls `record` with what it made or found current; `gpucampus images verify` calls `note_signature`. Two
writers at once take turns, and a reader never sees half a file.
"""

import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from deploy.steps import state_folder
from spawner import settings as settings_file
from spawner.core.trust import BOOK, Book, BookError, Built, Outcome, Verdict, parse, text_of
from spawner.private_files import write_private
from spawner.trust import fingerprint

__all__ = ["hub_state", "note_signature", "read", "record"]


def hub_state() -> Path:
    """The state folder that the settings name; before there are settings, that of `make run`.

    SettingsError where they cannot be used: a record in another folder would be one that no hub reads.
    """
    return settings_file.load().state if settings_file.locate().exists() else state_folder()


def record(variant: str, image: str, inputs: str, *, state: Path | None = None) -> None:
    """Note that a variant's image is this one.

    Parameters
    ----------
    variant, image
        The variant's name, and its image's id on the engine.
    inputs
        The hash of all that it was made of.
    state
        The hub's state folder; see hub_state where None.
    """

    def change(book: Book) -> Book:
        known = book.built.get(variant)
        if known is not None and (known.image, known.inputs) == (image, inputs):
            return book  # found current: the time stays that of the build
        return replace(book, built={**book.built, variant: Built(image=image, inputs=inputs, time=_now())})

    _update(state or hub_state(), change)


def note_signature(digest: str, outcome: Outcome, *, key: Path, reference: str, state: Path | None = None) -> None:
    """Note what a look for the signature of a digest found with a key; a second look replaces the first."""
    verdict = Verdict(outcome=outcome, key=fingerprint(key.read_bytes()), reference=reference, time=_now())
    _update(state or hub_state(), lambda book: replace(book, verified={**book.verified, digest: verdict}))


def read(state: Path) -> Book:
    """Read the book; empty where there is none, BookError where it is damaged."""
    path = state / BOOK
    return parse(path.read_text(encoding="utf-8")) if path.exists() else Book()


def _update(state: Path, change: Callable[[Book], Book]) -> None:
    state.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(state / f".{BOOK}.lock", os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            before = read(state)
        except (BookError, UnicodeDecodeError):
            # nothing in it can be believed; what is not recorded is refused until it is built or verified again
            before = Book()
        write_private(state / BOOK, text_of(change(before)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
