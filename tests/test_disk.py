"""The disk watch: what is full is refused without asking anybody, and a dead NAS is unknown, not full."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from spawner import disk as module
from spawner import home_child
from spawner.core.disks import Disk
from spawner.core.model import Code
from spawner.disk import HOMES, STATE, DiskWatch, Look, Places, in_containers, writers_of
from tests.rig.waiting import wait_until


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for name in ("state", "homes"):
        (tmp_path / name).mkdir()
    return Places(tmp_path / "state", tmp_path / "homes")


class StandIn(Places):
    """Places whose disks are as full as a test says."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, tmp_path)
        self.percent = 10
        self.unknown: dict[str, str] = {}

    async def look(self) -> Look:
        known = Disk(names=(STATE,), path="/srv", used_bytes=self.percent, available_bytes=100 - self.percent)
        return Look(() if STATE in self.unknown else (known,), self.unknown)


async def no_root() -> Path | None:
    return None


async def anna(_disk: Disk) -> str:
    return "homes: anna 90 GiB"


def watch_of(places: Places) -> DiskWatch:
    return DiskWatch(places, data_root=no_root, writers=anna)


async def test_what_is_on_one_file_system_is_one_disk(places):
    look = await places.look()
    assert [disk.names for disk in look.disks] == [(STATE, HOMES)]
    assert look.unknown == {}
    stat = os.statvfs(places.paths[STATE])
    assert look.disks[0].available_bytes == pytest.approx(stat.f_bavail * stat.f_frsize, rel=0.05)


async def test_a_place_that_is_not_there_is_unknown_and_hides_no_other(places):
    places.paths[HOMES] = places.paths[HOMES] / "gone"
    look = await places.look()
    assert [disk.names for disk in look.disks] == [(STATE,)]
    assert "ENOENT" in look.unknown[HOMES]


async def test_a_dead_nas_is_unknown_in_time_and_starts_go_on(places, tmp_path, monkeypatch):
    pids, hangs = tmp_path / "pids", tmp_path / "hangs.py"
    hangs.write_text(f"import os, signal\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\nsignal.pause()\n")
    monkeypatch.setattr(home_child, "_CHILD", hangs)
    monkeypatch.setattr(module, "LIMIT_S", 0.5)
    watch = watch_of(places)
    async with asyncio.timeout(10):
        await watch.read()
    assert watch.refusal() is None
    left = [Path(f"/proc/{pid}") for pid in pids.read_text().split()]
    await wait_until(lambda: not any(process.exists() for process in left), 10, "nobody is left behind")


async def test_a_full_disk_refuses_until_there_is_room_and_the_log_names_who_fills_it(tmp_path, caplog):
    places = StandIn(tmp_path)
    watch = watch_of(places)
    with caplog.at_level(logging.INFO, "spawner.disk"):
        await watch.read()
        assert (watch.refusal(), caplog.messages) == (None, [])
        places.percent = 90
        await watch.read()
        await watch.read()
        assert watch.refusal() is None
        places.percent = 96
        await watch.read()
        refused = watch.refusal()
        assert refused is not None
        assert refused.code is Code.DISK_FULL
        places.percent = 50
        await watch.read()
    assert watch.refusal() is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "INFO"]
    assert "90 % full, at 95 % starts stop; most is taken by: homes: anna 90 GiB" in caplog.messages[0]
    assert "no new server is started" in caplog.messages[1]


async def test_a_full_disk_that_cannot_be_looked_at_any_more_is_not_full(tmp_path):
    places = StandIn(tmp_path)
    places.percent = 99
    watch = watch_of(places)
    await watch.read()
    assert watch.refusal() is not None
    places.unknown = {STATE: "no answer within 5 s"}
    await watch.read()
    assert watch.refusal() is None


async def test_the_watch_looks_by_itself_and_outlives_a_fault(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "READ_EVERY_S", 0.01)
    places = StandIn(tmp_path)
    answers: list[Path] = []

    async def data_root() -> Path | None:
        answers.append(tmp_path)
        if len(answers) == 1:
            raise RuntimeError("a bug")
        return Path(tmp_path)

    places.percent = 97
    watch = DiskWatch(places, data_root=data_root)
    watch.begin()
    try:
        assert await wait_until(watch.refusal, timeout=5)
    finally:
        watch.close()
    assert "the look at the disks failed" in caplog.messages
    assert places.paths["containers"] == tmp_path


async def test_the_biggest_homes_are_named_by_their_persons(places):
    for name, mebibytes in (("200001", 30), ("200002", 60), ("200003", 0)):
        home = places.paths[HOMES] / name / "data"
        home.mkdir(parents=True)
        (home / "file").write_bytes(b"x" * (mebibytes << 20))
    people = places.paths[STATE] / "people" / "200002"
    people.mkdir(parents=True)
    (people / "passwd").write_text("root:x:0:0:root:/root:/x\nanna:x:200002:200002::/home/anna:/bin/bash\n")
    (places.paths[HOMES] / "200003" / "loop").symlink_to("/")
    assert await places.biggest(HOMES) == "anna (200002) 0.06 GiB, 200001 0.03 GiB"


async def test_a_walk_that_takes_too_long_says_how_far_it_came(places, monkeypatch):
    monkeypatch.setattr(module, "WALK_S", 0.0)
    for name in ("a", "b"):
        (places.paths[STATE] / name).write_bytes(b"x" * (30 << 20))
    text = await places.biggest(STATE)
    assert text.startswith("a 0.03 GiB (as far as")


async def test_writers_are_named_for_everything_on_a_disk(places):
    (places.paths[STATE] / "log").write_bytes(b"x" * (20 << 20))

    async def containers() -> str:
        return in_containers(
            [{"Names": ["/old"], "SizeRw": 5 << 30}, {"Names": ["/new"]}, {"Names": ["/big"], "SizeRw": 9 << 30}]
        )

    disk = Disk(names=("state", "containers", "homes"), path="/", used_bytes=1, available_bytes=1)
    assert await writers_of(places, disk, containers) == "state: log 0.02 GiB; containers: big 9 GiB, old 5 GiB"
