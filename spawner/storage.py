"""Homes: the only part that knows a path below the homes root.

Every access runs in a process of its own with a time limit (_home_child.py says why); a process that did not end in
time is left behind, and no second one is sent after it until it has ended.

The marker in a home (sub, uid, hub name) is what a lost database is learned from again. The home is its user's, so the
user can write any marker: without a proof, student A could write the teacher's `sub` into a marker of A's own, lose
nothing, and be the teacher's uid after the next restore. So each marker carries an HMAC made with a key that only the
hub has, and counts only in the folder of its own uid, owned by that uid. An old marker put back is still the same
person: the worst it brings back is the name they had then.
"""

import asyncio
import hashlib
import hmac
import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spawner.core.model import Person, Refusal
from spawner.core.names import check_name
from spawner.home_child import HomeChild

__all__ = ["Homes", "Storage", "read_marker", "sign_marker", "write_identity"]

LOGGER = logging.getLogger(__name__)

_SURVEY_TIMEOUT_S = 60
_MARKER_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Homes:
    """What is below the homes root.

    `persons` are those whose homes have a marker that is proved, by uid; `uids` all that something there is named by or
    belongs to, whatever its marker.
    """

    persons: tuple[Person, ...]
    uids: frozenset[int]


class Storage:
    """The homes root. `key` proves the markers; losing it means that markers are no longer believed."""

    def __init__(self, root: Path, key: bytes, *, timeout_s: float = 10) -> None:
        if not root.is_absolute() or len(key) < 16:
            raise ValueError("the homes root is an absolute path and the key has at least 16 bytes")
        self._root = root
        self._key = key
        self._timeout_s = timeout_s
        self._child = HomeChild()
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def prepare(self) -> Refusal | None:
        """Make the homes root if it is missing: root's own, and closed to listing. Called once at start."""
        answer = await self._child.ask({"do": "prepare", "root": str(self._root)}, self._timeout_s)
        return answer if isinstance(answer, Refusal) else None

    async def ensure_home(self, person: Person) -> Path | Refusal:
        """Make the person's home if it is missing and give its path; refuse a home that is not theirs.

        Refused with HOME_OWNER, HOME_NOT_FOLDER, or HOME_UNAVAILABLE (the root is missing, or did not answer in time).
        A home that is full is fine: its owner must be able to start a server and delete something.
        """
        if person.home != str(person.uid) or person.uid < 1000:
            raise ValueError(f"the home of uid {person.uid} cannot be {person.home!r}")
        request = {
            "do": "ensure",
            "root": str(self._root),
            "uid": person.uid,
            "home": person.home,
            "marker": sign_marker(person, self._key),
        }
        async with self._locks[person.uid]:
            answer = await self._child.ask(request, self._timeout_s)
        if isinstance(answer, Refusal):
            return answer
        if answer not in ("kept", "written"):
            LOGGER.warning("home marker not written: %s user=%s uid=%s", answer, person.hub_name, person.uid)
        return self._root / person.home

    async def attempt(self, uid: int) -> str | Refusal:
        """Write below the root as a user and leave nothing there; say who may make folders: root, or the user."""
        answer = await self._child.ask({"do": "attempt", "root": str(self._root), "uid": uid}, self._timeout_s)
        return answer if isinstance(answer, Refusal) else str(answer)

    async def survey(self) -> Homes | Refusal:
        """Look at everything below the root once: whose homes there are, and which uids must not be allotted."""
        answer = await self._child.ask({"do": "survey", "root": str(self._root)}, _SURVEY_TIMEOUT_S)
        if isinstance(answer, Refusal):
            return answer
        persons = []
        for home in answer:
            person = read_marker(home["marker"] or "", self._key)
            # a marker is proved, not where it lies: somebody could copy another's into their own home
            if person is not None and person.home == home["name"]:
                persons.append(person)
        return Homes(
            persons=tuple(sorted(persons, key=lambda person: person.uid)),
            uids=frozenset(uid for home in answer for uid in (int(home["name"]), int(home["owner"]))),
        )


def sign_marker(person: Person, key: bytes) -> str:
    """Write a person's marker, with the proof that the hub wrote it."""
    body = {"version": _MARKER_VERSION, "sub": person.sub, "uid": person.uid, "hub_name": person.hub_name}
    return json.dumps({**body, "proof": _proof(body, key)}, sort_keys=True) + "\n"


def read_marker(text: str, key: bytes) -> Person | None:
    """Read a marker; None where it is not one, or not ours."""
    try:
        body = json.loads(text)
        proof = body.pop("proof")
        if not hmac.compare_digest(str(proof).encode(), _proof(body, key).encode()):
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    # proved: only the hub writes such a body, so its types are what sign_marker wrote
    if body.get("version") != _MARKER_VERSION:
        return None
    return Person(sub=body["sub"], uid=body["uid"], hub_name=body["hub_name"], home=str(body["uid"]))


def _proof(body: Mapping[str, Any], key: bytes) -> str:
    """HMAC over the body in one fixed form; it begins with its purpose, so that no other use of the key is a proof."""
    text = "gpucampus home marker\n" + json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def write_identity(people_dir: Path, person: Person) -> tuple[Path, Path]:
    """Write the passwd and group files that the person's containers see, and give their paths.

    They name root, the person and nobody: with no entry for its uid a shell greets with "I have no name!". Written as
    new files and renamed, so that a container that starts meanwhile mounts the old one or the new one.
    """
    if check_name(person.hub_name) is not None:
        raise ValueError(f"not a user name: {person.hub_name!r}")  # a colon or a newline would add accounts
    folder = people_dir / str(person.uid)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    name, uid = person.hub_name, person.uid
    passwd = (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    group = f"root:x:0:\n{name}:x:{uid}:\nnogroup:x:65534:\n"
    return _write(folder / "passwd", passwd), _write(folder / "group", group)


def _write(path: Path, text: str) -> Path:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        new = path.with_name(path.name + ".new")
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(path)
    return path
