"""Every container's numbers lie inside its role's."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core.limits import MIN_MEMORY_BYTES, ContainerDefaults, limits_for
from spawner.core.model import GIB, Code, Limits, Refusal
from tests.core.test_entitlements import entitlement

STUDENT = entitlement("student")
DEFAULTS = ContainerDefaults(pids=512, shm_bytes=GIB, tmp_bytes=GIB, tmp_inodes=100_000, nofile=65_536)


def given_limits(memory_bytes: int | None) -> Limits:
    limits = limits_for(STUDENT, memory_bytes, DEFAULTS)
    assert isinstance(limits, Limits)
    return limits


def test_without_a_choice_the_role_s_default_memory_is_given():
    assert given_limits(None).memory_bytes == STUDENT.default_memory_bytes


def test_the_rest_comes_from_the_role_and_the_settings():
    assert given_limits(6 * GIB) == Limits(
        memory_bytes=6 * GIB,
        cpus=2.0,
        pids=512,
        shm_bytes=GIB,
        tmp_bytes=GIB,
        tmp_inodes=100_000,
        nofile=65_536,
    )


@pytest.mark.parametrize("memory_bytes", [MIN_MEMORY_BYTES, STUDENT.memory_bytes])
def test_the_ends_of_the_range_are_allowed(memory_bytes):
    assert given_limits(memory_bytes).memory_bytes == memory_bytes


def test_shared_memory_and_tmp_shrink_with_the_memory():
    limits = given_limits(MIN_MEMORY_BYTES)
    assert (limits.shm_bytes, limits.tmp_bytes) == (MIN_MEMORY_BYTES, MIN_MEMORY_BYTES)


@pytest.mark.parametrize("memory_bytes", [-1, 0, 1, MIN_MEMORY_BYTES - 1, STUDENT.memory_bytes + 1, 1 << 200])
def test_outside_the_range_is_refused_with_the_range(memory_bytes):
    refusal = limits_for(STUDENT, memory_bytes, DEFAULTS)
    assert refusal == Refusal.of(
        Code.MEMORY_RANGE, asked=memory_bytes, least=MIN_MEMORY_BYTES, most=STUDENT.memory_bytes, role="student"
    )


@pytest.mark.parametrize("memory", [True, 4.0 * GIB, "4G"])
def test_what_is_not_a_whole_number_is_the_caller_s_mistake(memory):
    with pytest.raises(TypeError, match="memory_bytes"):
        limits_for(STUDENT, memory, DEFAULTS)


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 42), st.none() | st.integers(-(1 << 42), 1 << 42))
def test_memory_and_what_counts_as_memory_never_exceed_the_role(shm_bytes, most, memory_bytes):
    role = replace(STUDENT, memory_bytes=most, default_memory_bytes=most)
    limits = limits_for(role, memory_bytes, replace(DEFAULTS, shm_bytes=shm_bytes, tmp_bytes=shm_bytes))
    if isinstance(limits, Refusal):
        return
    assert MIN_MEMORY_BYTES <= limits.memory_bytes <= most
    assert 0 < limits.shm_bytes <= limits.memory_bytes
    assert 0 < limits.tmp_bytes <= limits.memory_bytes
