"""The disks that servers can fill: how full they are, and who fills them.

Each file system is looked at in a process of its own with a time limit, so that a dead NAS holds nobody and hides no
other disk. What nobody could look at is unknown, and unknown is not full.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spawner.core.disks import FULL_PERCENT, WARN_PERCENT, Disk, refusal
from spawner.core.model import Refusal
from spawner.home_child import HomeChild
from spawner.messages import size

__all__ = [
    "CONTAINERS",
    "HOMES",
    "STATE",
    "DiskWatch",
    "Look",
    "Places",
    "Writers",
    "in_containers",
    "said",
    "writers_of",
]

LOG = logging.getLogger(__name__)
STATE, HOMES, CONTAINERS = "state", "homes", "containers"
LIMIT_S = 5.0
READ_EVERY_S = 30.0
WALK_S = 8.0
MOST = 5

Writers = Callable[[Disk], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen: the disks, and the places that nobody could look at, each with the reason."""

    disks: tuple[Disk, ...]
    unknown: Mapping[str, str]


class Places:
    """Where the hub and its containers write, by name; what the engine has not told yet is left out."""

    def __init__(self, state: Path, homes: Path) -> None:
        self.paths: dict[str, Path] = {STATE: state, HOMES: homes}
        self._children: dict[str, HomeChild] = {}

    async def look(self) -> Look:
        """Measure every place; those on one file system are one disk."""
        names = list(self.paths)
        answers = await asyncio.gather(*(self._ask(name, {"do": "space"}, LIMIT_S) for name in names))
        unknown = {
            name: _why(answer) for name, answer in zip(names, answers, strict=True) if isinstance(answer, Refusal)
        }
        by_device: dict[int, dict[str, Any]] = {}
        for name, answer in zip(names, answers, strict=True):
            if name not in unknown:
                by_device.setdefault(answer["device"], {**answer, "names": []})["names"].append(name)
        disks = tuple(
            Disk(
                names=tuple(found["names"]),
                path=str(self.paths[found["names"][0]]),
                used_bytes=found["used"],
                available_bytes=found["available"],
            )
            for found in by_device.values()
        )
        return Look(disks, unknown)

    async def biggest(self, name: str) -> str:
        """Name what takes most below a place, as far as a walk of a few seconds comes; empty where nobody can tell."""
        answer = await self._ask(name, {"do": "biggest", "seconds": WALK_S, "most": MOST}, WALK_S + LIMIT_S)
        if isinstance(answer, Refusal):
            return ""
        rows = [(self._whose(name, row["name"]), int(row["bytes"])) for row in answer["sizes"]]
        part = "" if answer["whole"] else f" (as far as {WALK_S:g} s of looking came)"
        return said(rows) + part if rows else ""

    async def _ask(self, name: str, request: dict[str, Any], limit_s: float) -> Any:  # noqa: ANN401 - the child's JSON
        child = self._children.setdefault(name, HomeChild())
        return await child.ask({**request, "root": str(self.paths[name])}, limit_s)

    def _whose(self, place: str, name: str) -> str:
        """A home by its person, as the passwd file of their containers names them."""
        if place != HOMES:
            return name
        try:
            lines = (self.paths[STATE] / "people" / name / "passwd").read_text(encoding="utf-8").splitlines()
            return f"{lines[1].split(':')[0]} ({name})"
        except (OSError, IndexError):
            return name


class DiskWatch:
    """Looks at the disks while the hub runs; whether new servers may start is known without asking anybody."""

    def __init__(
        self, places: Places, *, data_root: Callable[[], Awaitable[Path | None]], writers: Writers | None = None
    ) -> None:
        self._places = places
        self._data_root = data_root
        self._writers = writers
        self._look = Look((), {})
        self._levels: dict[str, int] = {}
        self._keeper: asyncio.Task[None] | None = None

    def refusal(self) -> Refusal | None:
        """Refuse new servers while a disk is full, as it was within the last half minute."""
        return refusal(self._look.disks)

    def begin(self) -> None:
        """Look now and go on looking; nobody waits for it."""
        self._keeper = asyncio.create_task(self._keep())

    def close(self) -> None:
        """Look no more."""
        if self._keeper is not None:
            self._keeper.cancel()

    async def read(self) -> None:
        """Look once, and say in the log what has become worse or better."""
        if CONTAINERS not in self._places.paths and (root := await self._data_root()):
            self._places.paths[CONTAINERS] = root
        before, self._look = self._look, await self._places.look()
        for name, why in self._look.unknown.items():
            if name not in before.unknown:
                LOG.warning("how full the disk for %s is cannot be told: %s", name, why)
        for disk in self._look.disks:
            await self._tell(disk)

    async def _tell(self, disk: Disk) -> None:
        level = (disk.percent >= WARN_PERCENT) + (disk.percent >= FULL_PERCENT)
        was, self._levels[disk.path] = self._levels.get(disk.path, 0), level
        if level > was:
            what = "no new server is started" if disk.percent >= FULL_PERCENT else f"at {FULL_PERCENT} % starts stop"
            by = await self._writers(disk) if self._writers else ""
            LOG.log(
                logging.ERROR if disk.percent >= FULL_PERCENT else logging.WARNING,
                "the disk for %s (%s) is %d %% full, %s; most is taken by: %s",
                *(disk.said, disk.path, disk.percent, what, by or "nobody could tell"),
            )
        elif level < was:
            LOG.info("the disk for %s (%s) is %d %% full", disk.said, disk.path, disk.percent)

    async def _keep(self) -> None:
        while True:
            try:
                await self.read()
            except Exception:  # a fault of ours must not end the looking: a full disk would stay full for good
                LOG.exception("the look at the disks failed")
            await asyncio.sleep(READ_EVERY_S)


async def writers_of(places: Places, disk: Disk, containers: Callable[[], Awaitable[str]]) -> str:
    """Name the writers of everything that is kept on a disk."""
    asked: list[Awaitable[str]] = [containers() if name == CONTAINERS else places.biggest(name) for name in disk.names]
    found = await asyncio.gather(*asked)
    return "; ".join(f"{name}: {text}" for name, text in zip(disk.names, found, strict=True) if text)


def in_containers(rows: Iterable[Mapping[str, Any]]) -> str:
    """Name the containers that have written most, of a listing with sizes."""
    sizes = [((row.get("Names") or ["/"])[0].lstrip("/"), int(row.get("SizeRw") or 0)) for row in rows]
    return said(sorted(sizes, key=lambda item: (-item[1], item[0]))[:MOST])


def said(rows: Collection[tuple[str, int]]) -> str:
    """Names and sizes in one line; what is next to nothing is left out."""
    return ", ".join(f"{name} {size(number)} GiB" for name, number in rows if number >= 10 << 20)


def _why(answer: Refusal) -> str:
    return str(dict(answer.params).get("why", answer.code.value))
