"""The images that this hub may start: the book of records and the site's key, read where they have changed.

Nothing here asks a registry: a start needs the engine and two small files, so a refusal comes at once. Signatures are
looked for by `gpucampus images verify`, which writes what it found into the book.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from spawner.core import trust
from spawner.core.model import Code, Refusal, Variant
from spawner.messages import sentence
from spawner.settings import ImageSettings

__all__ = ["ImageTrust", "fingerprint"]

LOG = logging.getLogger(__name__)
T = TypeVar("T")


def fingerprint(key: bytes) -> str:
    """Name a public key in the book."""
    return hashlib.sha256(key).hexdigest()


class ImageTrust:
    """Judges images by the site's policy.

    Parameters
    ----------
    state
        The hub's state folder, where the book is.
    settings
        The policy, and the file of the public key.
    """

    def __init__(self, state: Path, settings: ImageSettings) -> None:
        self._policy = settings.verify
        self._book = _Cached(state / trust.BOOK, lambda data: trust.parse(data.decode()), trust.Book())
        self._key = _Cached(settings.key, fingerprint, "")

    def refusal(self, variant: Variant, image: str, digests: tuple[str, ...]) -> Refusal | None:
        """Say why no server is started from this image of the engine; None where it may be used."""
        if self._policy == "off":
            return None
        found = self._judged(variant, image, digests)
        if found is not None and self._policy == "warn":
            LOG.warning("images.verify is warn, so this is let through: %s", sentence(found))
            return None
        return found

    def _judged(self, variant: Variant, image: str, digests: tuple[str, ...]) -> Refusal | None:
        try:
            return trust.judge(variant, image, digests, self._book.read(), self._key.read())
        except (OSError, UnicodeDecodeError, trust.BookError) as error:
            LOG.error("the records of images cannot be read: %s", error)  # noqa: TRY400 - for the operator, no traceback
            return Refusal.of(Code.IMAGE_RECORDS, variant=variant.name)


class _Cached(Generic[T]):
    """What a file says, read again only when it is another file or has changed; `absent` where there is none."""

    def __init__(self, path: Path | None, read: Callable[[bytes], T], absent: T) -> None:
        self._path = path
        self._read = read
        self._absent = absent
        self._seen: tuple[int, int, int] | None = None
        self._value = absent

    def read(self) -> T:
        if self._path is None:
            return self._absent
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._seen = None
            return self._absent
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if mark != self._seen:
            self._value = self._read(self._path.read_bytes())
            self._seen = mark
        return self._value
