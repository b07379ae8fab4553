"""Writing files so that nobody else ever sees them, whole or in part; and the secrets that are made so."""

import os
import secrets
from pathlib import Path

__all__ = ["ensure_secret", "make_secret", "write_private"]


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only, unless it says this already."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        path.chmod(0o600)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")  # two processes must not write into one
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def make_secret(path: Path) -> None:
    """Make a secret of 64 hex digits, in a folder for its owner only, unless there is one."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, secrets.token_hex(32))


def ensure_secret(path: Path) -> str:
    """Read a secret; made at its first use."""
    make_secret(path)
    return path.read_text(encoding="ascii").strip()
