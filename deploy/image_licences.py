"""The licences of Debian packages, as their copyright files name them.

Most files follow Debian's form and have lines `License: NAME`; the others point at the texts in
/usr/share/common-licenses. What names neither stays without a licence: nothing is guessed.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["named_in", "with_licences"]

_FIELD = re.compile(r"^License:[ \t]*(\S[^\n]*?)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z]+(?:-\d+(?:\.\d+)*)?)")
_LARGEST = 2 << 20


def named_in(copyright_text: str) -> tuple[str, ...]:
    """The names of licences in a copyright file, each once, in the order of the file."""
    found = _FIELD.findall(copyright_text) or _COMMON.findall(copyright_text)
    return tuple(dict.fromkeys(name[:120] for name in found))


def with_licences(root: Path, parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add licences to the Debian packages of an unpacked image that have none yet."""
    return [dict(part) if "licenses" in part else {**part, **_licences(root, str(part["name"]))} for part in parts]


def _licences(root: Path, package: str) -> dict[str, Any]:
    folder = root / "usr/share/doc" / package
    if folder.is_symlink():  # packages of one source share a folder; a link may not lead out of the image
        folder = folder.parent / Path(folder.readlink()).name
    file = folder / "copyright"
    if not file.is_file() or file.is_symlink() or file.stat().st_size > _LARGEST:
        return {}
    names = named_in(file.read_text(encoding="utf-8", errors="replace"))
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}
