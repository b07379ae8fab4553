"""One file with members and a manifest: written whole or not at all, believed only after every byte was verified.

It is a plain tar, on purpose not a compressed one: what comes out is never larger than what went in. Members are never
extracted by their own path: each has a name out of a closed set, is an ordinary file, and is written to a place that
the reader chooses.
"""

import errno
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spawner.core.names import printable
from spawner.keeping.files import KeepingError

__all__ = ["FORMAT", "Manifest", "Member", "describe", "is_member", "read", "write"]

FORMAT = 1
MANIFEST = "manifest.json"
MOST_MEMBERS = 10_000
MOST_MANIFEST_BYTES = 8 << 20
_PIECE = 1 << 20
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,99}"
_NAMES = re.compile(
    rf"settings\.toml|catalog\.toml|client_secret|campus_ca|(hub|records)\.sqlite|secrets/{_WORD}"
    rf"|config\.d/{_WORD}(/{_WORD}){{0,3}}|log/audit\.jsonl(\.[1-9])?"
)
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, LookupError, OverflowError, RecursionError)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Member(_Part):
    """What a member must be."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    mode: Annotated[int, Field(ge=0, le=0o777)]


class Manifest(_Part):
    """What a backup holds, of which hub, made when and by which version."""

    format: int
    gpucampus: str
    jupyterhub: str
    made: str
    hub: str
    settings_file: str  # where it was, for whoever puts it back on a bare machine
    revisions: dict[str, str]
    members: Annotated[dict[str, Member], Field(max_length=MOST_MEMBERS)]


def is_member(name: str) -> bool:
    """Whether a backup can hold a file of this name."""
    return _NAMES.fullmatch(name) is not None and len(name) <= 255


def describe(file: Path) -> Member:
    """The member that a file makes."""
    with file.open("rb") as opened:
        total = hashlib.file_digest(opened, "sha256").hexdigest()
    status = file.stat()
    return Member(sha256=total, size=status.st_size, mode=status.st_mode & 0o777)


def write(target: Path, manifest: Manifest, files: Mapping[str, Path], draft: Path) -> None:
    """Write a backup, for its owner only, through a draft beside it; KeepingError where the target is there already."""
    text = manifest.model_dump_json(indent=1).encode()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        with tarfile.open(fileobj=opened, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, file in ((MANIFEST, None), *sorted(files.items())):
                info = tarfile.TarInfo(name)
                info.mode, info.size = 0o600, len(text) if file is None else manifest.members[name].size
                if file is None:
                    tar.addfile(info, io.BytesIO(text))
                else:
                    with file.open("rb") as content:
                        tar.addfile(info, content)
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(draft, target)  # a rename would replace what somebody has put there meanwhile
    except FileExistsError as error:
        raise KeepingError(f"{target} is there already and is not overwritten: name another file") from error
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}:  # a file system without hard links
            raise
        draft.rename(target)
    parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def read(file: Path, into: Path) -> Manifest:
    """Verify a backup and put its members into an empty folder; KeepingError where anything is odd."""
    try:
        with file.open("rb") as opened, tarfile.open(fileobj=opened, mode="r:") as tar:
            manifest = _manifest(tar)
            missing = dict(manifest.members)
            for info in iter(tar.next, None):
                expected = missing.pop(info.name, None)
                if expected is None or not is_member(info.name):
                    raise KeepingError(f"a member {printable(info.name, 100)!r} is not in its list, or twice")
                _check(info, expected.size)
                _unpack(tar, info, expected, into / info.name)
    except KeepingError as error:
        raise KeepingError(f"{file} is no backup that can be trusted: {error}; nothing was changed") from error
    except FileNotFoundError as error:
        raise KeepingError(f"{error.filename} is not there; nothing was changed") from error
    except _BROKEN as error:
        raise KeepingError(f"{file} cannot be read as a backup ({error}); nothing was changed") from error
    if missing:
        raise KeepingError(f"{file} is cut off: {', '.join(sorted(missing)[:3])} is missing; nothing was changed")
    return manifest


def _manifest(tar: tarfile.TarFile) -> Manifest:
    first = tar.next()
    if first is None or first.name != MANIFEST:
        raise KeepingError(f"{MANIFEST} is not its first member")
    _check(first, first.size)
    if first.size > MOST_MANIFEST_BYTES:
        raise KeepingError(f"{MANIFEST} is too large")
    content = tar.extractfile(first)
    text = content.read(MOST_MANIFEST_BYTES) if content else b""
    try:
        number = json.loads(text).get("format")
        if isinstance(number, int) and number > FORMAT:
            raise KeepingError(f"it is of a newer format ({number}) than this version reads ({FORMAT})")
        return Manifest.model_validate_json(text)
    except (ValidationError, AttributeError, UnicodeDecodeError) as error:
        raise KeepingError(f"{MANIFEST} is not as it should be") from error


def _check(info: tarfile.TarInfo, size: int) -> None:
    """Refuse links, devices, holes, and a size that is not the one in the list."""
    if info.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or info.issparse() or info.size != size:
        raise KeepingError(f"the member {printable(info.name, 100)!r} is no ordinary file of its size")


def _unpack(tar: tarfile.TarFile, info: tarfile.TarInfo, expected: Member, target: Path) -> None:
    content = tar.extractfile(info)
    if content is None:
        raise KeepingError(f"the member {info.name} has no content")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    total = hashlib.sha256()
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as made:
        while piece := content.read(_PIECE):
            total.update(piece)
            made.write(piece)
    if total.hexdigest() != expected.sha256:
        raise KeepingError(f"the member {info.name} has changed since the backup was made")
