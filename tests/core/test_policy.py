"""Who gets which GPU: the properties first, then rows by name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core.model import Code, Lease, Mode, Placement, Refusal, Variant
from spawner.core.policy import gpus_held, place

from . import strategies as make
from .strategies import NOW, claim, gpu, lease, node


@given(make.clusters(), st.lists(make.claims, max_size=8))
def test_exclusive_never_shared(cluster, claims):
    nodes, leases = cluster
    owners = {uuid: item.id for item in leases for uuid in item.gpus}
    slices = {part.uuid: item.uuid for box in nodes for item in box.gpus for part in item.mig}
    for number, wanted in enumerate(claims):
        answer = place(wanted, nodes, leases, NOW)
        if isinstance(answer, Placement):
            assert len(answer.gpus) == wanted.gpus
            for uuid in answer.gpus:
                assert uuid not in owners
                assert not any(slices.get(taken) == uuid for taken in owners), "a parent beside its slice"
                owners[uuid] = f"new-{number}"
            leases = (*leases, lease(100 + number, *answer.gpus, user=wanted.user))


@given(make.clusters(), make.claims)
def test_never_above_entitlement(cluster, wanted):
    nodes, leases = cluster
    answer = place(wanted, nodes, leases, NOW)
    if isinstance(answer, Placement) and wanted.gpus:
        assert gpus_held(wanted.user, leases) + len(answer.gpus) <= wanted.entitlement.gpus


@given(make.clusters(), make.claims, st.randoms())
def test_deterministic(cluster, wanted, random):
    nodes, leases = cluster
    answer = place(wanted, nodes, leases, NOW)
    shuffled = [
        node(*random.sample(list(box.gpus), len(box.gpus)), name=box.name)
        for box in random.sample(list(nodes), len(nodes))
    ]
    assert place(wanted, shuffled, random.sample(list(leases), len(leases)), NOW) == answer


@given(make.clusters(), make.claims, st.data())
def test_freeing_never_hurts(cluster, wanted, data):
    nodes, leases = cluster
    if leases and isinstance(place(wanted, nodes, leases, NOW), Placement):
        freed = data.draw(st.sampled_from(leases))
        fewer = tuple(item for item in leases if item != freed)
        assert isinstance(place(wanted, nodes, fewer, NOW), Placement)


@given(make.clusters(), make.claims)
def test_refusal_names_the_constraint(cluster, wanted):
    nodes, leases = cluster
    answer = place(wanted, nodes, leases, NOW)
    if isinstance(answer, Refusal):
        params: dict[str, Any] = dict(answer.params)
        whole = [item for box in nodes for item in box.gpus if not item.mig_enabled]
        match answer.code:
            case Code.GPU_ENTITLEMENT:
                assert params["asked"] + params["held"] > params["allowed"]
            case Code.NO_GPUS:
                assert params["asked"] > params["exist"]
            case Code.GPU_UNHEALTHY:
                assert params["unhealthy"] > 0
            case Code.GPUS_LEASED:
                assert 0 < params["leased"] <= params["exist"] <= len(whole)
            case _:
                pytest.fail(f"unexpected {answer}")


@given(make.clusters(), make.claims)
def test_unhealthy_never_placed_never_freed(cluster, wanted):
    nodes, leases = cluster
    answer = place(wanted, nodes, leases, NOW)
    if isinstance(answer, Placement):
        sick = {item.uuid for box in nodes for item in box.gpus if item.unhealthy}
        assert sick.isdisjoint(answer.gpus)


def test_two_claims_get_two_gpus_and_a_third_is_told_how_many_are_leased():
    nodes = (node(gpu(1), gpu(2)),)
    first = place(claim(user="ann"), nodes, (), NOW)
    assert first == Placement(node="node-1", gpus=("GPU-00000001",))
    held: tuple[Lease, ...] = (lease(1, "GPU-00000001", user="ann"),)
    assert place(claim(user="bob"), nodes, held, NOW) == Placement(node="node-1", gpus=("GPU-00000002",))
    held = (*held, lease(2, "GPU-00000002", user="bob"))
    assert place(claim(user="cem"), nodes, held, NOW) == Refusal.of(Code.GPUS_LEASED, asked=1, leased=2, exist=2)


def test_the_leases_of_another_hub_count_as_taken():
    held = (lease(1, "GPU-00000001", hub="other"),)
    assert place(claim(), (node(gpu(1)),), held, NOW) == Refusal.of(Code.GPUS_LEASED, asked=1, leased=1, exist=1)


def test_what_an_unreadable_container_names_is_withheld():
    answer = place(claim(), (node(gpu(1)),), (), NOW, withheld={"GPU-00000001"})
    assert answer == Refusal.of(Code.GPUS_LEASED, asked=1, leased=1, exist=1)


def test_one_person_with_two_servers_stays_within_the_entitlement():
    held = (lease(1, "GPU-00000001", user="ann"),)
    answer = place(claim(user="ann", server="second", allowed=1), (node(gpu(1), gpu(2)),), held, NOW)
    assert answer == Refusal.of(Code.GPU_ENTITLEMENT, asked=1, held=1, allowed=1)


def test_several_gpus_come_from_one_node():
    nodes = (node(gpu(1), name="a"), node(gpu(2), gpu(3), name="b"))
    assert place(claim(gpus=2, allowed=2), nodes, (), NOW) == Placement(node="b", gpus=("GPU-00000002", "GPU-00000003"))


def test_a_gpu_split_by_mig_is_never_given_whole():
    nodes = (node(gpu(1, slices=2)),)
    assert place(claim(), nodes, (), NOW) == Refusal.of(Code.NO_GPUS, asked=1, exist=0)


def test_one_dead_of_four_leaves_three():
    nodes = (node(gpu(1), gpu(2, unhealthy="lost"), gpu(3), gpu(4)),)
    assert place(claim(gpus=3, allowed=4), nodes, (), NOW) == Placement(
        node="node-1", gpus=("GPU-00000001", "GPU-00000003", "GPU-00000004")
    )
    answer = place(claim(gpus=4, allowed=4), nodes, (), NOW)
    assert answer == Refusal.of(Code.GPU_UNHEALTHY, asked=4, unhealthy=1, exist=4)


@pytest.mark.parametrize("mode", [Mode.MIG, Mode.SHARED])
def test_modes_that_are_not_offered_are_refused_by_name(mode):
    answer = place(claim(mode=mode), (node(gpu(1, slices=2)),), (), NOW)
    assert answer == Refusal.of(Code.MODE_NOT_OFFERED, mode=mode.value)


CUDA = Variant(name="cu130", title="CUDA 13", image="i:1", min_driver="580.65.06", architectures=(75, 80, 86, 90))


@pytest.mark.parametrize(
    ("driver", "capability", "code"),
    [
        pytest.param("570.86.15", 80, Code.DRIVER_TOO_OLD, id="driver-too-old"),
        pytest.param("580.65.06", 70, Code.ARCHITECTURE, id="volta-is-not-in-cuda-13"),
        pytest.param("580.65.06", 89, None, id="ada-runs-code-of-8.6"),
    ],
)
def test_a_variant_is_placed_only_where_it_runs(driver, capability, code):
    answer = place(claim(variant=CUDA), (node(gpu(1, capability=capability), driver=driver),), (), NOW)
    assert (None if isinstance(answer, Placement) else answer.code) is code


def test_a_claim_without_gpus_needs_none():
    assert place(claim(gpus=0), (node(),), (), NOW) == Placement(node="node-1", gpus=())
