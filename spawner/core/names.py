"""User names and server names.

What must hold:

- a user name that passes `check_name` is a legal part of a container name, a host name label behind an escape, and a
  path component that cannot climb (no slash, no `..`, no leading dash or dot, no braces, ASCII only);
- `server_slug` gives a legal part of a container name for *any* string, two strings never share one (the long ones
  share one only where SHA-256 collides in 80 bits), and the answer is never longer than `SLUG_LENGTH`.

The identity provider and the REST API can send any string: nothing here trusts the hub to have refused it before.
"""

import hashlib
import re

from spawner.core.model import Code, Refusal

__all__ = ["NAME_LENGTH", "NAME_RULE", "SLUG_LENGTH", "check_name", "printable", "server_slug"]

NAME_LENGTH = 32
NAME_RULE = r"[a-z][a-z0-9._-]{0,31}"
SLUG_LENGTH = 40

_NAME = re.compile(NAME_RULE)
_PLAIN_SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NOT_SLUG = re.compile(r"[^a-z0-9]+")
_DIGEST_LENGTH = 20


def printable(text: str, limit: int = 40) -> str:
    """Shorten somebody else's text and escape what does not print, so that it can stand in a sentence or a log line."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def check_name(raw: str) -> Refusal | None:
    """Refuse a user name that does not follow the rule; None means that it is fine.

    The whole string must match: `$` in a pattern would let a trailing newline pass.
    """
    if _NAME.fullmatch(raw) and ".." not in raw:
        return None
    return Refusal.of(Code.NAME_INVALID, name=printable(raw), most=NAME_LENGTH)


def server_slug(name: str) -> str:
    """Map a server name to letters, digits and dashes, injectively.

    A plain name stays as it is: it begins with a letter and has no double dash. The empty name (the default server) is
    `0`, which no plain name can be. Everything else keeps a readable start and ends in `--` and a digest of the whole.
    """
    if name == "":
        return "0"
    if len(name) <= SLUG_LENGTH and _PLAIN_SLUG.fullmatch(name):
        return name
    # surrogatepass: JSON can carry a lone surrogate, which strict UTF-8 refuses
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    start = _NOT_SLUG.sub("-", name.lower())[: SLUG_LENGTH - _DIGEST_LENGTH - 2].strip("-")
    return f"{start or 'x'}--{digest}"
