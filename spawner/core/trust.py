"""Whether an image may be started: the engine must have the very image that was recorded.

What must hold:

- an image that was built here is known by its id, which its build recorded; another id under the same name is refused;
- an image of a registry is known by the digest in the catalog, and counts only where a signature of this digest was
  verified with the key that the site uses now; a verification with another key says nothing;
- what nobody recorded is refused like what contradicts a record: a lost record must not open a door.

The book of records is a file in the state folder, `images.json`: `built` (variant -> id, inputs, time) and `verified`
(digest -> outcome, fingerprint of the key, reference, time). It is written by the build and by
`gpucampus images verify` (deploy/image_records.py), and read by the hub.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import cast

from spawner.core.model import Code, Refusal, Variant

__all__ = ["BOOK", "Book", "BookError", "Built", "Outcome", "Verdict", "digest_of", "judge", "parse", "text_of"]

BOOK = "images.json"
VERSION = 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHOWN = len("sha256:") + 12  # as much of an id as Docker shows


class BookError(ValueError):
    """The book cannot be read; the text is one line for the operator."""


class Outcome(StrEnum):
    """What came of a look for a signature."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    WRONG_KEY = "wrong-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A local build: the image's id, a hash of all that it was made of, and when."""

    image: str
    inputs: str
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a look for the signature of a digest found, and with which key (the SHA-256 of its file)."""

    outcome: Outcome
    key: str
    reference: str
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """All records; empty where nothing was ever built or verified."""

    built: Mapping[str, Built] = field(default_factory=dict)
    verified: Mapping[str, Verdict] = field(default_factory=dict)


def digest_of(reference: str) -> str:
    """The digest that a reference ends in; empty where it is a name with a tag, so that the image was built here."""
    found = reference.rpartition("@")[2]
    return found if "@" in reference and _DIGEST.fullmatch(found) else ""


def judge(variant: Variant, image: str, digests: Iterable[str], book: Book, key: str) -> Refusal | None:
    """Say what stands against an image of the engine; None where it is the recorded one.

    Parameters
    ----------
    variant
        The choice of the catalog, whose reference says where its image is from.
    image, digests
        The image's id on the engine, and the references by digest under which it was pulled or pushed.
    book
        What was recorded.
    key
        The fingerprint of the site's public key; empty where there is none.
    """
    if digest := digest_of(variant.image):
        return _judge_signature(variant, digest, digests, book, key)
    known = book.built.get(variant.name)
    if known is None:
        return Refusal.of(Code.IMAGE_UNRECORDED, variant=variant.name, image=image[:_SHOWN])
    if known.image != image:
        return Refusal.of(Code.IMAGE_CHANGED, variant=variant.name, image=image[:_SHOWN], recorded=known.image[:_SHOWN])
    return None


def _judge_signature(variant: Variant, digest: str, digests: Iterable[str], book: Book, key: str) -> Refusal | None:
    name, shown = variant.name, digest[:_SHOWN]
    if all(digest_of(one) != digest for one in digests):
        return Refusal.of(Code.IMAGE_CHANGED, variant=name, image="another digest", recorded=shown)
    known = book.verified.get(digest)
    if known is None or not key or known.key != key:
        return Refusal.of(Code.IMAGE_UNVERIFIED, variant=name, image=shown)
    if known.outcome is Outcome.SIGNED:
        return None
    code = Code.IMAGE_UNSIGNED if known.outcome is Outcome.UNSIGNED else Code.IMAGE_WRONG_KEY
    return Refusal.of(code, variant=name, image=shown)


def parse(text: str) -> Book:
    """Read the book; BookError says in one line what is wrong."""
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            raise BookError(f"its version is {data['version']!r}, and this hub knows {VERSION}")
        return Book(
            built={name: Built(**_texts(entry)) for name, entry in data["built"].items()},
            verified={digest: _verdict(_texts(entry)) for digest, entry in data["verified"].items()},
        )
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BookError(f"it is not as it was written ({type(error).__name__}: {error})") from error
    except ValueError as error:  # BookError is one
        raise BookError(str(error)) from error


def text_of(book: Book) -> str:
    """Write the book as parse reads it."""
    data = {"version": VERSION, **asdict(book)}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _texts(entry: object) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise BookError("an entry is not a table of texts")
    return cast("dict[str, str]", entry)


def _verdict(entry: Mapping[str, str]) -> Verdict:
    rest = {name: value for name, value in entry.items() if name != "outcome"}
    return Verdict(outcome=Outcome(entry["outcome"]), **rest)
