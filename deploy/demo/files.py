"""Writing files so that nobody else ever sees them, whole or in part."""

import os
from pathlib import Path

__all__ = ["write_if_missing", "write_private"]


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only, unless it says this already."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        path.chmod(0o600)
        return
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def write_if_missing(path: Path, text: str) -> None:
    """Write a private file once; what is there stays."""
    if not path.exists():
        write_private(path, text)
