"""A GPU is given again only when a look after its last server's end shows an idle GPU."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core.ledger import Container, to_labels
from spawner.core.model import GIB, Node
from spawner.core.readings import GPUProcess, Reading
from spawner.core.regrant import (
    foreign,
    holders,
    out_of_service,
    quarantined,
    said,
    with_foreign,
    with_missing,
    withheld,
)
from tests.core.strategies import NOW, gpu, lease, node

IDLE = GIB
ONE, TWO = gpu(1), gpu(2)
SPLIT = gpu(3, slices=2)
LEFT, RIGHT = (part.uuid for part in SPLIT.mig)
SECOND = timedelta(seconds=1)


def reading(uuid: str, *processes: GPUProcess, used: int | None = 0, at=NOW) -> Reading:
    return Reading(uuid=uuid, at=at, memory_used_bytes=used, processes=processes)


def idle(here: Node) -> dict[str, Reading]:
    uuids = [uuid for item in here.gpus for uuid in (item.uuid, *(part.uuid for part in item.mig))]
    return {uuid: reading(uuid) for uuid in uuids}


def process(pid: int, container: str = "", mib: int | None = 500) -> GPUProcess:
    return GPUProcess(pid=pid, container=container, memory_bytes=None if mib is None else mib << 20)


def test_idle_gpus_are_not_withheld():
    here = node(ONE, TWO, SPLIT)
    assert quarantined(here, idle(here), (), {}, IDLE) == {}


@pytest.mark.parametrize("later", [timedelta(0), -SECOND])
def test_a_look_that_began_before_the_end_is_no_proof(later):
    readings = {ONE.uuid: reading(ONE.uuid, at=NOW + later)}
    found = quarantined(node(ONE), readings, (), {ONE.uuid: NOW}, IDLE)
    assert found[ONE.uuid].startswith("checking")


def test_a_look_that_began_after_the_end_frees_it():
    readings = {ONE.uuid: reading(ONE.uuid, at=NOW + SECOND)}
    assert quarantined(node(ONE), readings, (), {ONE.uuid: NOW}, IDLE) == {}


def test_a_gpu_that_nobody_has_read_is_withheld():
    assert quarantined(node(ONE), {}, (), {}, IDLE)[ONE.uuid].startswith("checking")


def test_what_a_server_left_running_is_named():
    readings = {ONE.uuid: reading(ONE.uuid, process(41, mib=20), process(42), at=NOW + SECOND)}
    found = quarantined(node(ONE), readings, (), {ONE.uuid: NOW}, IDLE)
    assert found == {ONE.uuid: "process 42 with 500 MiB and 1 more are still on it after its last server ended"}


def test_a_process_whose_memory_nobody_knows_keeps_a_gpu_withheld():
    readings = {ONE.uuid: reading(ONE.uuid, process(42, mib=None), at=NOW + SECOND)}
    found = quarantined(node(ONE), readings, (), {ONE.uuid: NOW}, IDLE)
    assert found == {ONE.uuid: "process 42 is still on it after its last server ended"}


@pytest.mark.parametrize(("used", "kept"), [(IDLE, False), (IDLE + 1, True), (None, False)])
def test_memory_above_idle_without_a_process_is_withheld_even_if_no_end_is_known(used, kept):
    found = quarantined(node(ONE), {ONE.uuid: reading(ONE.uuid, used=used)}, (), {}, IDLE)
    assert (ONE.uuid in found) is kept
    assert not kept or "1024 MiB of its memory are in use and no process shows" in found[ONE.uuid]


def test_a_gpu_that_tells_nothing_is_withheld():
    blind = Reading(uuid=ONE.uuid, at=NOW)
    assert "tells neither" in quarantined(node(ONE), {ONE.uuid: blind}, (), {}, IDLE)[ONE.uuid]


def test_a_gpu_in_use_is_not_in_quarantine():
    readings = {ONE.uuid: reading(ONE.uuid, process(42, "c1"), used=30 * GIB)}
    assert quarantined(node(ONE), readings, {ONE.uuid}, {ONE.uuid: NOW - SECOND}, IDLE) == {}


def test_a_share_that_ended_is_looked_after_while_others_go_on():
    readings = {ONE.uuid: reading(ONE.uuid, process(42, "c1"), used=30 * GIB)}
    assert ONE.uuid in quarantined(node(ONE), readings, {ONE.uuid}, {ONE.uuid: NOW + SECOND}, IDLE)


def test_instances_are_looked_at_one_by_one_and_their_parent_not_at_all():
    here = node(SPLIT)
    readings = idle(here) | {
        SPLIT.uuid: reading(SPLIT.uuid, process(42), used=30 * GIB),
        LEFT: reading(LEFT, process(42), used=2 * GIB, at=NOW + SECOND),
    }
    assert set(quarantined(here, readings, (), {LEFT: NOW}, IDLE)) == {LEFT}


def test_the_end_of_a_whole_gpu_counts_for_instances_made_of_it_later():
    here = node(SPLIT)
    assert set(quarantined(here, idle(here), (), {SPLIT.uuid: NOW}, IDLE)) == {LEFT, RIGHT}


def test_unhealthy_gpus_are_left_to_their_own_reason():
    assert quarantined(node(gpu(1, unhealthy="lost")), {}, (), {ONE.uuid: NOW}, IDLE) == {}


@given(
    ends=st.dictionaries(st.sampled_from([ONE.uuid, TWO.uuid, LEFT, RIGHT]), st.integers(0, 4)),
    looks=st.dictionaries(st.sampled_from([ONE.uuid, TWO.uuid, LEFT, RIGHT]), st.integers(0, 4)),
    busy=st.sets(st.sampled_from([ONE.uuid, TWO.uuid, LEFT, RIGHT])),
)
def test_nothing_is_free_without_a_later_look_at_an_idle_gpu(ends, looks, busy):
    readings = {
        uuid: reading(uuid, *([process(1)] if uuid in busy else []), at=NOW + step * SECOND)
        for uuid, step in looks.items()
    }
    ended = {uuid: NOW + step * SECOND for uuid, step in ends.items()}
    for uuid in {ONE.uuid, TWO.uuid, LEFT, RIGHT} - set(
        withheld(node(ONE, TWO, SPLIT), readings, {}, IDLE, ended=ended)
    ):
        assert uuid not in busy
        assert looks[uuid] > ends.get(uuid, -1)


def test_one_look_without_a_history_finds_what_is_wrong_now():
    readings = idle(node(ONE, TWO, SPLIT)) | {
        ONE.uuid: reading(ONE.uuid, process(41), used=GIB),
        TWO.uuid: reading(TWO.uuid, used=2 * GIB),
        LEFT: reading(LEFT, process(42, "c1"), used=2 * GIB),
    }
    found = withheld(node(ONE, TWO, SPLIT), readings, {"c1": frozenset({LEFT})}, IDLE)
    assert set(found) == {ONE.uuid, TWO.uuid}
    assert "belongs to no server" in found[ONE.uuid]
    assert "no process shows" in found[TWO.uuid]


# -- processes of nobody's server --------------------------------------------------------------------------------------


def test_a_process_of_the_holder_is_at_home_and_all_others_are_foreign():
    readings = {ONE.uuid: reading(ONE.uuid, process(1, "mine"), process(2, "other"), process(3, "unknown"), process(4))}
    owners = {"mine": frozenset({ONE.uuid}), "other": frozenset({TWO.uuid})}
    assert foreign(node(ONE, TWO), readings, owners) == {ONE.uuid: (2, 3, 4)}


def test_both_holders_of_a_shared_gpu_are_at_home():
    readings = {ONE.uuid: reading(ONE.uuid, process(1, "ann"), process(2, "bob"))}
    assert foreign(node(ONE), readings, dict.fromkeys(("ann", "bob"), frozenset({ONE.uuid}))) == {}


def test_a_neighbour_s_process_on_an_instance_counts_on_that_instance_only():
    readings = {
        SPLIT.uuid: reading(SPLIT.uuid, process(1, "ann"), process(2, "ann"), process(9)),
        LEFT: reading(LEFT, process(1, "ann")),
        RIGHT: reading(RIGHT, process(2, "ann"), process(9)),
    }
    assert foreign(node(SPLIT), readings, {"ann": frozenset({LEFT})}) == {RIGHT: (2, 9)}


def test_a_process_that_no_instance_shows_counts_on_the_gpu_unless_its_holder_has_a_part():
    readings = {SPLIT.uuid: reading(SPLIT.uuid, process(1, "ann"), process(9))}
    assert foreign(node(SPLIT), readings, {"ann": frozenset({LEFT})}) == {SPLIT.uuid: (9,)}


def test_the_counts_stand_on_the_gpu_and_on_the_instance():
    counted = with_foreign(node(ONE, SPLIT), {ONE.uuid: (1, 2), RIGHT: (3,)})
    assert [item.foreign_processes for item in counted.gpus] == [2, 0]
    assert [part.foreign_processes for part in counted.gpus[1].mig] == [0, 1]
    assert with_foreign(counted, {}) == node(ONE, SPLIT)


def test_the_sentence_names_number_and_pids():
    assert said([7]) == "1 process that belongs to no server is on it (pid 7)"
    assert said(range(1, 8)) == "7 processes that belong to no server are on it (pids 1, 2, 3, 4, 5, ...)"


def test_holders_are_all_containers_with_our_label_even_if_nothing_else_can_be_read():
    whole = Container(id="c1", name="n", state="running", labels=to_labels(lease(1, ONE.uuid, TWO.uuid)))
    orphan = Container(id="c2", name="n", state="exited", labels={"gpucampus.gpus": " GPU-9 ,"})
    assert holders([whole, orphan]) == {"c1": {ONE.uuid, TWO.uuid}, "c2": {"GPU-9"}}


def test_a_gpu_that_is_held_and_not_listed_is_shown_as_unhealthy():
    here = with_missing(node(ONE, SPLIT), {"c1": frozenset({ONE.uuid, LEFT}), "c2": frozenset({"GPU-gone"})})
    assert [(item.uuid, bool(item.unhealthy)) for item in here.gpus] == [
        (ONE.uuid, False),
        (SPLIT.uuid, False),
        ("GPU-gone", True),
    ]


def test_what_is_withheld_is_shown_as_out_of_service_but_a_split_gpu_is_not_for_one_of_its_parts():
    here = out_of_service(node(ONE, TWO, SPLIT), {TWO.uuid: "checking", LEFT: "checking"})
    assert [item.unhealthy for item in here.gpus] == ["", "checking", ""]
