"""Who takes more than their share is warned first, and loses one process only after the time to react."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from spawner.core.model import GIB, Mode
from spawner.core.readings import GPUProcess, Reading
from spawner.core.shares import Excess, Holder, Verdict, judge
from tests.core.strategies import NOW, gpu, lease

SHARED = gpu(1).uuid
SHARE = 20 * GIB
GRACE = 60
ANN = Holder(container="ann", lease=lease(1, SHARED, user="ann", mode=Mode.SHARED))
BOB = Holder(container="bob", lease=lease(2, SHARED, user="bob", mode=Mode.SHARED))


def at(second: float, *processes: tuple[int, str, int]) -> dict[str, Reading]:
    listed = tuple(
        GPUProcess(pid=pid, container=container, memory_bytes=gib * GIB) for pid, container, gib in processes
    )
    return {SHARED: Reading(uuid=SHARED, at=NOW + timedelta(seconds=second), processes=listed)}


def verdict(readings: dict[str, Reading], before: Verdict | None = None, *holders: Holder) -> Verdict:
    known: tuple[Excess, ...] = before.excesses if before else ()
    return judge(readings, holders or (ANN, BOB), {SHARED: SHARE}, known, GRACE)


def test_exactly_the_share_is_allowed():
    assert verdict(at(0, (1, "ann", 12), (2, "ann", 8), (3, "bob", 20))) == Verdict()


def test_the_processes_of_one_server_count_together_and_are_warned_first():
    first = verdict(at(0, (1, "ann", 12), (2, "ann", 9), (3, "bob", 20)))
    assert [(item.holder, item.used_bytes, item.share_bytes) for item in first.warn] == [(ANN, 21 * GIB, SHARE)]
    assert first.end == ()


def test_within_the_time_nothing_is_ended_and_the_warning_is_not_said_again():
    first = verdict(at(0, (1, "ann", 30)))
    second = verdict(at(59, (1, "ann", 35)), first)
    assert (second.warn, second.end) == ((), ())


def test_after_the_time_the_biggest_process_of_that_server_is_ended_and_only_once():
    busy = [(1, "ann", 3), (2, "ann", 19), (3, "bob", 20)]
    first = verdict(at(0, *busy))
    second = verdict(at(60, *busy), first)
    assert [(item.holder, item.biggest.pid) for item in second.end] == [(ANN, 2)]
    dying = verdict(at(75, *busy), second)
    assert (dying.warn, dying.end) == ((), ())


def test_a_server_that_is_still_above_loses_the_next_biggest():
    busy = [(1, "ann", 25), (2, "ann", 24)]
    second = verdict(at(60, *busy), verdict(at(0, *busy)))
    third = verdict(at(75, *busy), second)
    assert [item.biggest.pid for item in (*second.end, *third.end)] == [1, 2]


def test_a_server_that_went_below_starts_anew():
    first = verdict(at(0, (1, "ann", 30)))
    below = verdict(at(30, (1, "ann", 10)), first)
    again = verdict(at(70, (1, "ann", 30)), below)
    assert below == Verdict()
    assert (len(again.warn), again.end) == (1, ())


def test_whole_gpus_and_strangers_are_not_judged():
    whole = Holder(container="ann", lease=lease(1, SHARED, user="ann"))
    assert verdict(at(0, (1, "ann", 70), (2, "", 70), (3, "gone", 70)), None, whole, BOB) == Verdict()


def test_a_gpu_without_shares_or_without_a_reading_is_not_judged():
    assert judge(at(0, (1, "ann", 70)), [ANN], {}, (), GRACE) == Verdict()
    assert judge({}, [ANN], {SHARED: SHARE}, (), GRACE) == Verdict()


def test_memory_that_nobody_knows_is_not_held_against_anybody():
    unknown = Reading(uuid=SHARED, at=NOW, processes=(GPUProcess(pid=1, container="ann"),))
    assert verdict({SHARED: unknown}) == Verdict()
    assert verdict({SHARED: Reading(uuid=SHARED, at=NOW)}) == Verdict()


Steps = st.lists(
    st.tuples(
        st.integers(1, 90),
        st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["ann", "bob", ""]), st.integers(0, 30)), max_size=6),
    ),
    max_size=8,
)


@given(steps=Steps)
def test_nobody_is_ended_without_a_warning_and_the_full_time_above(steps):
    second, before = 0, Verdict()
    warned: dict[str, int] = {}
    for pause, processes in steps:
        second += pause
        listed = list({item[0]: item for item in processes}.values())
        used = {name: sum(gib for _, container, gib in listed if container == name) * GIB for name in ("ann", "bob")}
        now = verdict(at(second, *listed), before)
        for excess in now.end:
            name = excess.holder.container
            assert second - warned[name] >= GRACE
            assert used[name] > SHARE
            assert (excess.biggest.pid, name) in {(pid, container) for pid, container, _ in listed}
        above = {excess.holder.container for excess in now.excesses}
        warned = {name: warned.get(name, second) for name in above}
        before = now
