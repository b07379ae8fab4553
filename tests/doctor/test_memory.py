"""Promised memory against the machine's."""

import pytest

from spawner.core.model import GIB
from spawner.doctor import memory
from spawner.doctor.machine import NotLookedAtError
from spawner.doctor.memory import judge_memory
from spawner.findings import Status
from tests.core.test_entitlements import entitlement
from tests.doctor.trees import by_name, machine_of, settings_of, statuses

OK, WARN, FAIL = Status
MEMINFO = {"proc/meminfo": f"MemTotal:       {16 << 20} kB\nMemFree: 1 kB\n"}


@pytest.fixture(autouse=True)
def held(monkeypatch):
    monkeypatch.setattr(memory, "_held", lambda: 2 * GIB)


@pytest.mark.parametrize(
    ("placement", "status", "words"),
    [
        pytest.param({}, OK, ("15 of 16 GiB", "they hold 2"), id="once-but-for-the-reserve"),
        pytest.param({"memory_overcommit": 4}, WARN, ("63 GiB", "has 16", "memory_overcommit = 4"), id="four-times"),
        pytest.param({"memory_overcommit": 1.06}, OK, ("15.96 of 16",), id="more-than-once-and-a-reserve"),
    ],
)
def test_what_may_be_promised_is_said_with_its_numbers(tmp_path, placement, status, words):
    found = by_name(
        memory.check_memory(machine_of(tmp_path, MEMINFO, settings=settings_of(tmp_path, placement=placement)))
    )["memory"]
    assert found.status is status
    for word in words:
        assert word in found.text


@pytest.mark.parametrize(
    ("memory_of_one", "default", "expected"),
    [
        pytest.param("15G", "4G", {"memory": OK}, id="fits"),
        pytest.param("16G", "15G", {"memory": OK, "memory student": WARN}, id="the-most-does-not-fit"),
        pytest.param("16G", "16G", {"memory": OK, "memory student": FAIL}, id="no-start-without-choosing-less"),
    ],
)
def test_a_role_whose_server_never_fits_is_named(tmp_path, memory_of_one, default, expected):
    roles = {"student": {"groups": ["students"], "memory": memory_of_one, "default_memory": default}}
    assert (
        statuses(memory.check_memory(machine_of(tmp_path, MEMINFO, settings=settings_of(tmp_path, roles=roles))))
        == expected
    )


def test_servers_that_hold_more_than_the_rules_allow_now_are_told():
    found = judge_memory(16 * GIB, 15 * GIB, 15 * GIB + 1, overcommit=1)
    assert (found.status, "15 GiB" in found.text) == (WARN, True)
    assert judge_memory(16 * GIB, 15 * GIB, 15 * GIB, overcommit=1).status is OK
    assert "unknown" in judge_memory(16 * GIB, 15 * GIB, None, overcommit=1).text


def test_a_role_s_numbers_are_in_its_finding():
    (found,) = memory.judge_roles([entitlement("student")], GIB)
    assert (found.status, "4 GiB" in found.text, "promised 1:" in found.text) == (FAIL, True, True)


def test_without_the_kernel_s_word_nothing_is_judged(tmp_path):
    with pytest.raises(NotLookedAtError, match="meminfo"):
        list(memory.check_memory(machine_of(tmp_path, settings=settings_of(tmp_path))))
