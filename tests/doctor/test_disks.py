"""Homes and disks: the mount, whose homes there are, whether a user can write, how full it is."""

import asyncio
import os
from pathlib import Path

import pytest

from spawner.core.disks import Disk
from spawner.core.model import Code, Person, Refusal
from spawner.doctor.disks import check_disks, homes, judge_disk, judge_homes, judge_mount, mount_of
from spawner.findings import Status
from spawner.storage import Homes, Storage
from tests.doctor.trees import by_name, machine_of, settings_of, statuses

OK, WARN, FAIL = Status
MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /srv rw - tmpfs none rw
31 22 0:41 / /srv/homes rw,nosuid,nodev,relatime - nfs4 nas:/export/homes rw,vers=4.2
32 22 0:42 / /srv/with\\040space rw - xfs /dev/sdb1 rw
33 22 0:43 / /srv/ro ro,nosuid,nodev - nfs4 nas:/ro ro
"""


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        pytest.param("/srv/homes", "nfs4", id="the-mount"),
        pytest.param("/srv/homes/deep/down", "nfs4", id="below-it"),
        pytest.param("/srv/homesick", "tmpfs", id="a-name-that-begins-alike"),
        pytest.param("/srv/with space/homes", "xfs", id="space"),
        pytest.param("/opt", "ext4", id="the-system's-disk"),
    ],
)
def test_the_file_system_of_homes_is_the_nearest_mount(root, kind):
    mount = mount_of(MOUNTS, Path(root))
    assert mount is not None
    assert mount.kind == kind


@pytest.mark.parametrize(
    ("root", "mount", "options"),
    [
        pytest.param("/srv/homes", OK, OK, id="nas"),
        pytest.param("/opt/homes", OK, WARN, id="system-disk"),
        pytest.param("/srv/with space", OK, WARN, id="setuid-works"),
        pytest.param("/srv/other", WARN, WARN, id="memory"),
        pytest.param("/srv/ro", FAIL, OK, id="read-only"),
    ],
)
def test_a_mount_is_judged_by_type_and_options(root, mount, options):
    found = statuses(judge_mount(mount_of(MOUNTS, Path(root)), Path(root)))
    assert found == {"homes mount": mount, "homes options": options}


def test_a_mount_that_nobody_can_tell_is_a_warning():
    assert statuses(judge_mount(None, Path("/x"))) == {"homes mount": WARN}


def persons(*uids: int) -> tuple[Person, ...]:
    return tuple(Person(sub=f"s{uid}", uid=uid, hub_name=f"p{uid}", home=str(uid)) for uid in uids)


@pytest.mark.parametrize(
    ("found", "known", "status", "word"),
    [
        pytest.param(Homes(persons=persons(1), uids=frozenset({1})), persons(1, 2), OK, "1 homes", id="good"),
        pytest.param(Homes(persons=(), uids=frozenset()), (), OK, "0 homes", id="new-hub"),
        pytest.param(Homes(persons=(), uids=frozenset()), persons(1, 2), FAIL, "NAS mounted", id="nas-not-mounted"),
        pytest.param(Homes(persons=(), uids=frozenset({1})), persons(1), WARN, "no marker", id="without-marker"),
        pytest.param(Refusal.of(Code.HOME_UNAVAILABLE, why="hangs"), persons(1), FAIL, "hangs", id="no-answer"),
    ],
)
def test_an_empty_root_in_place_of_the_nas_is_found_by_the_persons_on_record(found, known, status, word):
    finding = judge_homes(found, known, Path("/srv/homes"))
    assert finding.status is status
    assert word in finding.text


def test_homes_are_looked_at_with_a_user_who_really_writes(tmp_path):
    settings = settings_of(
        tmp_path, homes={"root": tmp_path / "homes", "uid_min": 1000, "uid_max": os.geteuid() or 2000}
    )
    key = settings.state / "secrets" / "marker_key"
    key.parent.mkdir(parents=True)
    key.write_text("00" * 32)
    machine = machine_of(tmp_path / "root", {"proc/self/mountinfo": MOUNTS}, settings=settings)
    assert by_name(homes(machine))["homes writing"].status is FAIL, "the root is not there yet"
    asyncio.run(Storage(settings.homes.root, bytes(32)).prepare())
    found = by_name(homes(machine))
    assert (found["homes writing"].status, found["homes owners"].status) == (OK, OK)
    assert list(settings.homes.root.iterdir()) == []
    key.unlink()
    assert by_name(homes(machine))["homes owners"].status is WARN


@pytest.mark.parametrize(("percent", "status"), [(84, OK), (85, WARN), (94, WARN), (95, FAIL)])
def test_a_disk_warns_at_85_and_fails_at_95_and_names_who_fills_it(percent, status):
    disk = Disk(names=("homes",), path="/srv", used_bytes=percent, available_bytes=100 - percent)
    finding = judge_disk(disk, "homes: anna 90 GiB")
    assert finding.status is status
    assert ("anna" in finding.text) is (status is not OK)


def test_disks_are_looked_at_without_an_engine_too(tmp_path):
    settings = settings_of(tmp_path)
    settings.state.mkdir()
    found = statuses(check_disks(machine_of(tmp_path / "root", settings=settings, engine_trouble="refused")))
    assert (found["disk containers"], found["disk homes"]) == (WARN, WARN), "unknown is not full"
    assert "disk state" in found
