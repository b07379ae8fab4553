"""Homes are made as their user, nobody else's is ever touched, and a hung NAS holds nobody."""

import asyncio
import json
import os
import signal
import stat
from pathlib import Path

import pytest

from spawner import home_child
from spawner.core.model import Code, Person, Refusal
from spawner.storage import Homes, Storage, read_marker, sign_marker, write_identity
from tests.rig.waiting import wait_until

KEY = b"k" * 32
MARKER = ".gpucampus-home.json"
UID = 234_567
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes homes of other users: needs root")


def person(uid: int = UID, hub_name: str = "anna", sub: str = "sub-anna") -> Person:
    return Person(sub=sub, uid=uid, hub_name=hub_name, home=str(uid))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A homes root below a folder that only root can enter, as the state folder is."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    return closed / "homes"


@pytest.fixture
async def storage(root: Path) -> Storage:
    made = Storage(root, KEY)
    assert await made.prepare() is None
    return made


def owner_and_mode(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def snapshot(root: Path) -> dict[str, tuple[int, int, int, int]]:
    """Everything below a folder with owner, group, mode and time of change."""
    return {str(path): (*owner_and_mode(path), path.lstat().st_mtime_ns) for path in root.rglob("*")}


async def seen(storage: Storage) -> Homes:
    answer = await storage.survey()
    assert isinstance(answer, Homes)
    return answer


def why(answer: object) -> str:
    assert isinstance(answer, Refusal)
    assert answer.code is Code.HOME_UNAVAILABLE
    return str(dict(answer.params)["why"])


async def test_the_root_is_passed_through_but_not_listed(storage, root):
    assert owner_and_mode(root)[2] == 0o711
    assert await storage.prepare() is None


async def test_a_root_that_is_a_file_is_refused(root):
    root.touch()
    assert "not a folder" in why(await Storage(root, KEY).prepare())


async def test_a_missing_root_is_never_made_by_a_start(root):
    """A NAS that was not mounted must not become a folder on the local disk."""
    assert "ENOENT" in why(await Storage(root, KEY).ensure_home(person()))
    assert not root.exists()


@needs_root
async def test_a_new_home_belongs_to_its_user_alone(storage, root):
    assert await storage.ensure_home(person()) == root / str(UID)
    assert owner_and_mode(root / str(UID)) == (UID, UID, 0o700)
    assert owner_and_mode(root / str(UID) / MARKER) == (UID, UID, 0o600)
    assert sorted(path.name for path in root.iterdir()) == [str(UID)]


@needs_root
async def test_in_a_root_open_to_users_the_home_is_made_by_the_user(storage, root):
    """As on a root-squashed export: what root makes there would belong to nobody."""
    root.chmod(0o1777)
    os.chown(root, 12_345, 12_345)
    assert await storage.ensure_home(person()) == root / str(UID)
    assert owner_and_mode(root / str(UID)) == (UID, UID, 0o700)


@needs_root
async def test_a_root_that_the_user_cannot_write_is_refused(storage, root):
    os.chown(root, 12_345, 12_345)
    assert "EACCES" in why(await storage.ensure_home(person()))
    assert list(root.iterdir()) == []


@needs_root
async def test_the_second_start_changes_nothing_in_the_home(storage, root):
    await storage.ensure_home(person())
    home = root / str(UID)
    (home / "notes.txt").write_text("mine")
    (home / "folder").mkdir()
    os.chown(home / "folder", 777, 888)
    before = snapshot(home)
    assert await storage.ensure_home(person()) == home
    assert snapshot(home) == before


@needs_root
async def test_the_home_of_another_is_refused_with_both_numbers_and_left_alone(storage, root):
    home = root / str(UID)
    home.mkdir()
    os.chown(home, 1234, 1234)
    (home / "file").touch()
    before = snapshot(root)
    assert await storage.ensure_home(person()) == Refusal.of(Code.HOME_OWNER, owner=1234, uid=UID)
    assert snapshot(root) == before


@needs_root
@pytest.mark.parametrize("kind", ["symlink", "dangling", "file", "fifo"])
async def test_what_is_no_folder_is_refused_and_left_alone(storage, root, tmp_path, kind):
    target = tmp_path / "etc"
    target.mkdir()
    home = root / str(UID)
    {
        "symlink": lambda: home.symlink_to(target),
        "dangling": lambda: home.symlink_to(tmp_path / "nowhere"),
        "file": home.touch,
        "fifo": lambda: os.mkfifo(home),
    }[kind]()
    os.chown(home, UID, UID, follow_symlinks=False)
    assert await storage.ensure_home(person()) == Refusal.of(Code.HOME_NOT_FOLDER, home=str(UID))
    assert list(target.iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


@needs_root
async def test_what_a_crash_left_half_made_is_made_whole(storage, root):
    (root / f".new-{UID}").mkdir()
    assert await storage.ensure_home(person()) == root / str(UID)
    assert sorted(path.name for path in root.iterdir()) == [str(UID)]


@needs_root
async def test_the_marker_does_not_follow_a_link_of_the_user(storage, root, tmp_path):
    await storage.ensure_home(person())
    victim = tmp_path / "victim"
    victim.write_text("keep")
    victim.chmod(0o666)
    tmp_path.chmod(0o777)
    for name in (MARKER, MARKER + ".new"):
        path = root / str(UID) / name
        path.unlink(missing_ok=True)
        path.symlink_to(victim)
    assert await storage.ensure_home(person()) == root / str(UID)
    assert victim.read_text() == "keep"
    assert not (root / str(UID) / MARKER).is_symlink()


@needs_root
async def test_a_home_that_takes_no_marker_still_starts(storage, root, caplog):
    """Stands for a full home: its owner must be able to start a server and delete something."""
    await storage.ensure_home(person())
    (root / str(UID) / MARKER).unlink()
    (root / str(UID) / MARKER).mkdir()
    assert await storage.ensure_home(person()) == root / str(UID)
    assert "marker not written" in caplog.text


@needs_root
async def test_the_marker_follows_a_renamed_account(storage):
    await storage.ensure_home(person())
    await storage.ensure_home(person(hub_name="anna.b"))
    assert list((await seen(storage)).persons) == [person(hub_name="anna.b")]


@needs_root
async def test_ten_starts_of_one_person_at_once_make_one_home(storage, root):
    answers = await asyncio.gather(*(storage.ensure_home(person()) for _ in range(10)))
    assert set(answers) == {root / str(UID)}
    assert sorted(path.name for path in root.iterdir()) == [str(UID)]


@pytest.mark.parametrize("home", ["..", "/etc", "234567/..", "anna", "", "234568"])
async def test_a_home_that_is_not_the_uid_is_a_mistake_of_the_caller(storage, home):
    with pytest.raises(ValueError, match="cannot be"):
        await storage.ensure_home(Person(sub="s", uid=UID, hub_name="anna", home=home))


@pytest.mark.parametrize("uid", [0, 1, 999, -1])
async def test_system_uids_never_get_a_home(storage, uid):
    with pytest.raises(ValueError, match="cannot be"):
        await storage.ensure_home(person(uid))


@needs_root
async def test_homes_are_known_again_from_their_markers(storage, root):
    people = [person(UID + i, f"n{i}", f"s{i}") for i in range(3)]
    for someone in reversed(people):
        await storage.ensure_home(someone)
    assert list((await seen(Storage(root, KEY))).persons) == people


@needs_root
@pytest.mark.parametrize("trick", ["unsigned", "copied", "other-key", "huge", "fifo", "symlink", "missing", "garbage"])
async def test_a_forged_marker_is_not_believed_but_its_uid_stays_taken(storage, root, trick):
    await storage.ensure_home(person())
    mallory = person(UID + 1, "mallory", "sub-mallory")
    await storage.ensure_home(mallory)
    marker = root / mallory.home / MARKER
    body = json.loads(marker.read_text())
    marker.unlink()
    {
        "unsigned": lambda: marker.write_text(json.dumps({**body, "sub": "sub-teacher"})),
        "copied": lambda: marker.write_text((root / str(UID) / MARKER).read_text()),
        "other-key": lambda: marker.write_text(sign_marker(mallory, b"o" * 32)),
        "huge": lambda: marker.write_text(sign_marker(mallory, KEY) + " " * 10_000),
        "fifo": lambda: os.mkfifo(marker),
        "symlink": lambda: marker.symlink_to(root / str(UID) / MARKER),
        "missing": lambda: None,
        "garbage": lambda: marker.write_bytes(b"\xff\xfe[[["),
    }[trick]()
    async with asyncio.timeout(20):
        assert list((await seen(storage)).persons) == [person()]
    assert (await seen(storage)).uids >= {UID, UID + 1}


@needs_root
async def test_a_marker_counts_only_in_a_home_of_its_own_uid(storage, root):
    await storage.ensure_home(person())
    os.chown(root / str(UID), 1234, 1234)
    os.chown(root / str(UID) / MARKER, 1234, 1234)
    assert list((await seen(storage)).persons) == []
    assert (await seen(storage)).uids >= {UID, 1234}


@needs_root
async def test_every_number_below_the_root_is_taken_and_nothing_else(storage, root):
    (root / "200007").touch()
    (root / "200008").symlink_to("/nowhere")
    (root / "0200009").mkdir()
    for name in ("anna", ".new-200010", "20 0011", "٢٠"):
        (root / name).mkdir()
    assert {uid for uid in (await seen(storage)).uids if uid} == {200_007, 200_008, 200_009}
    assert list((await seen(storage)).persons) == []


async def test_an_unreadable_root_is_a_refusal_and_never_an_empty_answer(root):
    """An empty answer would let a new person have an old one's uid."""
    broken = Storage(root, KEY)
    assert "ENOENT" in why(await broken.survey())


async def test_a_hung_root_refuses_in_time_and_gets_no_second_visitor(root, tmp_path, monkeypatch):
    pid_file = tmp_path / "pids"
    hangs = tmp_path / "hangs.py"
    hangs.write_text(
        "import os, signal\n"
        f"open({str(pid_file)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    monkeypatch.setattr(home_child, "_CHILD", hangs)
    # SIGKILL has no effect on a process inside a dead mount; here the test withholds it
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda _self: None)
    storage = Storage(root, KEY, timeout_s=1)
    async with asyncio.timeout(5):
        assert "no answer within 1 s" in why(await storage.ensure_home(person()))
        assert "still hangs" in why(await storage.ensure_home(person(UID + 1)))
    (pid,) = map(int, pid_file.read_text().split())
    os.kill(pid, signal.SIGKILL)
    monkeypatch.undo()
    answers_again: bool = await wait_until(lambda: prepared(storage), timeout=10)
    assert answers_again


async def prepared(storage: Storage) -> bool:
    return await storage.prepare() is None


async def test_the_event_loop_goes_on_while_the_root_is_visited(storage):
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.005)

    beating = asyncio.create_task(beat())
    await storage.survey()
    beating.cancel()
    assert beats >= 3


def test_a_marker_reads_back(tmp_path):
    anna = person(hub_name="anna", sub="çub ' \" \\ \n 张")
    assert read_marker(sign_marker(anna, KEY), KEY) == anna


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "{}", '{"proof": 1}', "[" * 100_000, '{"proof": "\\ud800"}'])
def test_what_is_no_marker_is_nobody(text):
    assert read_marker(text, KEY) is None


@pytest.mark.parametrize("change", [{"sub": "x"}, {"uid": 1}, {"hub_name": "x"}, {"version": 2}, {"more": 1}])
def test_every_part_of_a_marker_is_proved(change):
    body = json.loads(sign_marker(person(), KEY))
    assert read_marker(json.dumps({**body, **change}), KEY) is None


def test_a_short_key_or_a_relative_root_is_refused(tmp_path):
    with pytest.raises(ValueError, match="16 bytes"):
        Storage(tmp_path, b"short")
    with pytest.raises(ValueError, match="absolute"):
        Storage(Path("homes"), KEY)


def test_identity_files_name_root_the_person_and_nobody(tmp_path):
    passwd, group = write_identity(tmp_path / "people", person())
    assert passwd == tmp_path / "people" / str(UID) / "passwd"
    assert passwd.read_text().splitlines()[1] == f"anna:x:{UID}:{UID}::/home/anna:/bin/bash"
    assert [line.split(":")[0] for line in passwd.read_text().splitlines()] == ["root", "anna", "nobody"]
    assert [line.split(":")[0] for line in group.read_text().splitlines()] == ["root", "anna", "nogroup"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in (passwd, group))


def test_identity_files_are_written_once_and_replaced_as_a_whole(tmp_path):
    passwd, _ = write_identity(tmp_path, person())
    inode = passwd.stat().st_ino
    write_identity(tmp_path, person())
    assert passwd.stat().st_ino == inode
    write_identity(tmp_path, person(hub_name="anna.b"))
    assert passwd.stat().st_ino != inode
    assert "anna.b" in passwd.read_text()
    assert sorted(path.name for path in passwd.parent.iterdir()) == ["group", "passwd"]


@pytest.mark.parametrize("name", ["a:0:0", "a\nevil:x:0:0::/:/bin/sh", "..", ""])
def test_identity_files_take_no_hostile_name(tmp_path, name):
    with pytest.raises(ValueError, match="not a user name"):
        write_identity(tmp_path, person(hub_name=name))
    assert list(tmp_path.iterdir()) == []


@needs_root
async def test_an_attempt_writes_as_the_user_and_leaves_nothing(root, storage):
    await storage.prepare()
    assert await storage.attempt(UID) == "root"
    (open_root := root / "nas").mkdir()
    open_root.chmod(0o1777)
    assert await Storage(open_root, KEY).attempt(UID) == "user"
    assert list(open_root.iterdir()) == []
    assert [path.name for path in root.iterdir()] == ["nas"]


@needs_root
async def test_an_attempt_fails_where_users_cannot_write(root):
    root.mkdir(parents=True, exist_ok=True)
    os.chown(root, 54_321, 54_321)
    root.chmod(0o755)
    assert "EACCES" in why(await Storage(root, KEY).attempt(UID))
