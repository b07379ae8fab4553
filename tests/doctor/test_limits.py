"""What a container reads of its limits, compared with what it was made with; on both versions of cgroups."""

import pytest

from spawner.doctor.limits import judge, numbers
from spawner.findings import Status
from spawner.settings import ContainerSettings
from tests.doctor.trees import statuses

OK, WARN, FAIL = Status
ASKED = numbers(ContainerSettings())
UID = 299_999
BOTH = {
    "pids": str(ASKED.pids),
    "cpu quota": "50000",
    "cpu period": "100000",
    "memory": str(ASKED.memory_bytes),
    "shm": ASKED.shm_bytes,
    "tmp": ASKED.tmp_bytes,
    "open files": ASKED.nofile,
    "core files": 0,
    "capabilities": "0000000000000000",
    "no new privileges": "1",
    "seccomp": "2",
    "user": UID,
    "root writable": False,
}
V1 = {**BOTH, "version": "1", "memory and swap": str(ASKED.memory_bytes)}
V2 = {**BOTH, "version": "2", "swap": "0"}
NO_LIMIT = "9223372036854771712"


def look(seen: dict[str, object], swap_total: int = 1) -> dict[str, Status]:
    return statuses(judge(seen, ASKED, uid=UID, swap_total=swap_total, cgroup_driver="cgroupfs"))


@pytest.mark.parametrize("seen", [V1, V2], ids=["v1", "v2"])
def test_limits_that_are_kept_are_all_ok(seen):
    assert set(look(seen).values()) == {OK}


@pytest.mark.parametrize(
    ("seen", "check", "status"),
    [
        pytest.param(V1 | {"memory": NO_LIMIT}, "limit memory", FAIL, id="v1-no-memory-limit"),
        pytest.param(V2 | {"memory": "max"}, "limit memory", FAIL, id="v2-no-memory-limit"),
        pytest.param(V2 | {"memory": None}, "limit memory", FAIL, id="no-memory-controller"),
        pytest.param(V1 | {"memory and swap": NO_LIMIT}, "limit swap", WARN, id="v1-swap"),
        pytest.param(V1 | {"memory and swap": None}, "limit swap", WARN, id="v1-swap-is-not-counted"),
        pytest.param(V2 | {"swap": "max"}, "limit swap", WARN, id="v2-swap"),
        pytest.param(V2 | {"pids": "max"}, "limit pids", FAIL, id="pids"),
        pytest.param(V2 | {"cpu quota": "max"}, "limit processors", FAIL, id="processors"),
        pytest.param(V1 | {"cpu quota": "-1"}, "limit processors", FAIL, id="v1-processors"),
        pytest.param(V2 | {"shm": 64 << 20}, "limit shm", FAIL, id="shm-is-dropped"),
        pytest.param(V2 | {"tmp": 0}, "limit tmp", FAIL, id="no-tmpfs"),
        pytest.param(V2 | {"open files": 1024}, "limit open files", WARN, id="fewer-files"),
        pytest.param(V2 | {"open files": 1 << 20}, "limit open files", FAIL, id="more-files"),
        pytest.param(V2 | {"core files": -1}, "limit core files", FAIL, id="core"),
        pytest.param(V2 | {"capabilities": "00000000a80425fb"}, "limit rights", FAIL, id="capabilities"),
        pytest.param(V2 | {"root writable": True}, "limit rights", FAIL, id="root"),
        pytest.param(V2 | {"user": 0}, "limit rights", FAIL, id="user"),
    ],
)
def test_a_limit_that_was_dropped_is_found(seen, check, status):
    found = look(seen)
    assert found.pop(check) is status
    assert set(found.values()) == {OK}


def test_a_machine_without_swap_needs_no_accounting_of_it():
    assert look(V1 | {"memory and swap": None}, swap_total=0)["limit swap"] is OK
