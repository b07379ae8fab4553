"""Each constraint that stands against a claim is named, with its number."""

from dataclasses import replace

import pytest

from spawner.core.model import GIB, Code, MIGInstance, Mode, Placement, PlacementRules, Refusal
from spawner.core.policy import place

from . import strategies as make
from .strategies import NEWER, NOW, claim, given_to, gpu, ids, lease, node, placed_on

MIG, SHARED, EXCLUSIVE = Mode.MIG, Mode.SHARED, Mode.EXCLUSIVE
SHARED_BY_TWO = PlacementRules(shares_per_gpu=2)


@pytest.mark.parametrize(
    ("wanted", "nodes", "more", "refusal"),
    [
        pytest.param(
            claim(),
            [node(gpu(1))],
            {"leases": [lease(1, *ids(1), hub="other")]},
            Refusal.of(Code.GPUS_LEASED, asked=1, free=0, leased=1, exist=1),
            id="leased-by-another-hub",
        ),
        pytest.param(
            claim(),
            [node(gpu(1))],
            {"withheld": ids(1)},
            Refusal.of(Code.GPUS_LEASED, asked=1, free=0, leased=1, exist=1),
            id="named-by-an-unreadable-container",
        ),
        pytest.param(
            claim(gpus=2, allowed=2),
            [node(gpu(1), gpu(2), gpu(3), name="a"), node(gpu(4), gpu(5), gpu(6), name="b")],
            {"leases": [lease(n, *ids(n)) for n in (1, 2, 4, 5)]},
            Refusal.of(Code.GPUS_LEASED, asked=2, free=1, leased=4, exist=6),
            id="two-are-free-but-not-on-one-machine",
        ),
        pytest.param(
            claim(server="second"),
            [node(gpu(1), gpu(2))],
            {"leases": [lease(1, *ids(1), user="ann")]},
            Refusal.of(Code.GPU_ENTITLEMENT, asked=1, held=1, allowed=1),
            id="entitlement-over-all-servers",
        ),
        pytest.param(
            claim(mode=SHARED),
            [node(gpu(1), gpu(2))],
            {"leases": [lease(1, *ids(1), user="ann", mode=SHARED)], "rules": SHARED_BY_TWO},
            Refusal.of(Code.GPU_ENTITLEMENT, asked=1, held=1, allowed=1),
            id="a-share-counts-as-one",
        ),
        pytest.param(
            claim(),
            [node(gpu(1), gpu(2))],
            {
                "leases": [lease(1, *ids(1), role="student"), lease(2, role="researcher")],
                "rules": PlacementRules(role_gpus=(("student", 1),)),
            },
            Refusal.of(Code.ROLE_GPUS, role="student", asked=1, held=1, allowed=1),
            id="gpus-of-a-role",
        ),
        pytest.param(
            claim(gpus=2, allowed=2), [node(gpu(1))], {}, Refusal.of(Code.NO_GPUS, asked=2, exist=1), id="too-few-exist"
        ),
        pytest.param(
            claim(),
            [node(gpu(1, slices=2))],
            {},
            Refusal.of(Code.NO_GPUS, asked=1, exist=0),
            id="a-parent-is-never-given-whole",
        ),
        pytest.param(
            claim(),
            [node(replace(gpu(1), mig_enabled=True))],
            {},
            Refusal.of(Code.NO_GPUS, asked=1, exist=0),
            id="not-even-without-instances",
        ),
        pytest.param(
            claim(gpus=4, allowed=4),
            [node(gpu(1), gpu(2, unhealthy="lost"), gpu(3), gpu(4))],
            {},
            Refusal.of(Code.GPU_UNHEALTHY, asked=4, free=3, unhealthy=1, exist=4),
            id="one-dead-of-four",
        ),
        pytest.param(
            claim(),
            [node(replace(gpu(1), foreign_processes=2))],
            {},
            Refusal.of(Code.GPU_FOREIGN, asked=1, free=0, foreign=1, exist=1),
            id="a-program-that-is-not-ours",
        ),
        pytest.param(
            claim(),
            [node(gpu(1), gpu(2))],
            {"rules": PlacementRules(quarantined=frozenset(ids(1))), "leases": [lease(1, *ids(2))]},
            Refusal.of(Code.GPUS_LEASED, asked=1, free=0, leased=1, exist=1),
            id="in-quarantine-and-the-rest-leased",
        ),
        pytest.param(
            claim(),
            [node(gpu(1))],
            {"rules": PlacementRules(quarantined=frozenset(ids(1)))},
            Refusal.of(Code.GPU_QUARANTINED, asked=1, free=0, quarantined=1, exist=1),
            id="in-quarantine",
        ),
        pytest.param(
            claim(),
            [node(gpu(1), name="a"), node(name="b")],
            {"rules": PlacementRules(closed=frozenset(["a"]))},
            Refusal.of(Code.GPU_CLOSED, asked=1, free=0, closed=1, exist=1),
            id="on-a-drained-machine",
        ),
        pytest.param(
            claim(),
            [node(gpu(1))],
            {"rules": PlacementRules(closed=frozenset(ids(1)))},
            Refusal.of(Code.GPU_CLOSED, asked=1, free=0, closed=1, exist=1),
            id="a-cordoned-gpu",
        ),
        pytest.param(
            claim(gpus=0),
            [node(gpu(1))],
            {"rules": PlacementRules(closed=frozenset(["node-1"]))},
            Refusal.of(Code.NODES_CLOSED, closed=1, exist=1),
            id="every-machine-drained",
        ),
        pytest.param(claim(gpus=0), [], {}, Refusal.of(Code.NODES_CLOSED, closed=0, exist=0), id="no-machine"),
        pytest.param(
            claim(model="a10"),
            [node(gpu(1))],
            {},
            Refusal.of(Code.GPU_MODEL, model="a10", asked=1, free=0, models="NVIDIA A100-SXM4-80GB"),
            id="an-a10-is-not-an-a100",
        ),
        pytest.param(
            claim(gpu_memory_bytes=81 * GIB),
            [node(gpu(1))],
            {},
            Refusal.of(Code.GPU_MEMORY, needed=81 * GIB, most=80 * GIB, asked=1, free=0),
            id="gpu-memory",
        ),
        pytest.param(
            claim(mode=SHARED, gpu_memory_bytes=41 * GIB),
            [node(gpu(1))],
            {"rules": SHARED_BY_TWO},
            Refusal.of(Code.GPU_MEMORY, needed=41 * GIB, most=40 * GIB, asked=1, free=0),
            id="memory-of-a-share",
        ),
        pytest.param(
            claim(variant=NEWER),
            [node(gpu(1))],
            {},
            Refusal.of(Code.DRIVER_TOO_OLD, variant="cu130", driver="570.86.15", needed="580.65.06"),
            id="driver-too-old",
        ),
        pytest.param(
            claim(variant=NEWER),
            [node(gpu(1, capability=70), driver="580.65.06")],
            {},
            Refusal.of(Code.ARCHITECTURE, variant="cu130", capability="7.0", built="7.5, 8.0, 8.6, 9.0"),
            id="volta-is-not-in-cuda-13",
        ),
        pytest.param(
            claim(gpus=0, memory_bytes=8 * GIB),
            [node(memory_bytes=20 * GIB)],
            {"leases": [lease(1, memory_bytes=13 * GIB)]},
            Refusal.of(Code.HOST_MEMORY, asked=8 * GIB, free=7 * GIB, most=20 * GIB),
            id="the-machine-s-memory",
        ),
        pytest.param(
            claim(memory_bytes=8 * GIB),
            [node(gpu(1), memory_bytes=8 * GIB)],
            {"rules": PlacementRules(memory_reserve_bytes=GIB)},
            Refusal.of(Code.HOST_MEMORY, asked=8 * GIB, free=7 * GIB, most=7 * GIB),
            id="what-is-kept-for-the-system",
        ),
        pytest.param(
            claim(gpus=0),
            [node(memory_bytes=0)],
            {},
            Refusal.of(Code.HOST_MEMORY, asked=2 * GIB, free=0, most=0),
            id="memory-that-nobody-has-read",
        ),
        pytest.param(
            claim(gpus=0, cpus=2),
            [node(cpus=2)],
            {"leases": [lease(1, cpus=1.5)], "rules": PlacementRules(cpu_overcommit=1.5)},
            Refusal.of(Code.HOST_CPUS, asked=2, free=1.5, most=3),
            id="the-machine-s-processors",
        ),
        pytest.param(
            claim(memory_bytes=8 * GIB),
            [node(gpu(1), name="a", memory_bytes=4 * GIB), node(name="b", memory_bytes=64 * GIB)],
            {},
            Refusal.of(Code.HOST_MEMORY, asked=8 * GIB, free=4 * GIB, most=4 * GIB),
            id="the-memory-has-to-be-where-the-gpu-is",
        ),
        pytest.param(
            claim(mode=MIG),
            [node(gpu(1))],
            {},
            Refusal.of(Code.MODE_NOT_OFFERED, mode="mig"),
            id="no-instances-anywhere",
        ),
        pytest.param(
            claim(mode=SHARED),
            [node(gpu(1), gpu(2, slices=2))],
            {"rules": PlacementRules(shares_by_gpu=((ids(2)[0], 4),))},
            Refusal.of(Code.MODE_NOT_OFFERED, mode="shared"),
            id="a-parent-is-never-shared",
        ),
        pytest.param(
            claim(mode=MIG, gpus=2, allowed=2),
            [node(gpu(1, slices=2))],
            {},
            Refusal.of(Code.MIG_ONE, asked=2, most=1),
            id="two-instances",
        ),
        pytest.param(
            claim(mode=SHARED, gpus=2, allowed=2),
            [node(gpu(1), gpu(2))],
            {"rules": SHARED_BY_TWO},
            Refusal.of(Code.SHARED_ONE, asked=2, most=1),
            id="two-shares",
        ),
        pytest.param(
            claim(mode=MIG, profile="1g.10gb"),
            [node(gpu(1, slices=2))],
            {},
            Refusal.of(Code.MIG_PROFILE, profile="1g.10gb", asked=1, free=0, profiles="3g.40gb"),
            id="profile",
        ),
        pytest.param(
            claim(mode=MIG),
            [node(gpu(1, slices=2))],
            {"leases": [lease(1, *ids(1))]},
            Refusal.of(Code.INSTANCES_LEASED, asked=1, free=0, leased=2, exist=2),
            id="no-slice-of-a-leased-parent",
        ),
        pytest.param(
            claim(mode=SHARED),
            [node(gpu(1), gpu(2))],
            {
                "leases": [lease(1, *ids(1)), *(lease(n, *ids(2), mode=SHARED) for n in (2, 3))],
                "rules": SHARED_BY_TWO,
            },
            Refusal.of(Code.SHARES_LEASED, asked=1, free=0, leased=2, exist=2),
            id="the-third-share-of-two",
        ),
        pytest.param(
            claim(),
            [node(gpu(1))],
            {"leases": [lease(1, *ids(1), mode=SHARED)], "rules": SHARED_BY_TWO},
            Refusal.of(Code.GPUS_LEASED, asked=1, free=0, leased=1, exist=1),
            id="not-alone-beside-a-share",
        ),
        pytest.param(
            claim(mode=MIG),
            [
                node(
                    replace(gpu(1, slices=1), foreign_processes=1),
                    replace(
                        gpu(2),
                        mig=(MIGInstance(uuid="MIG-2", profile="3g.40gb", memory_bytes=1, foreign_processes=1),),
                    ),
                )
            ],
            {},
            Refusal.of(Code.GPU_FOREIGN, asked=1, free=0, foreign=2, exist=2),
            id="a-program-on-the-instance-or-its-parent",
        ),
    ],
)
def test_each_filter_names_itself_and_the_number_that_fell_short(wanted, nodes, more, refusal):
    assert given_to(wanted, *nodes, **more) == refusal


def test_a_mode_that_the_role_has_not_is_refused():
    wanted = replace(claim(), entitlement=make.entitlement(modes=(Mode.NONE,)))
    answer = given_to(wanted, node(gpu(1)))
    assert answer == Refusal.of(Code.MODE_NOT_ALLOWED, mode="exclusive", role="student", allowed="none")


@pytest.mark.parametrize(("mode", "count"), [(Mode.NONE, 1), (EXCLUSIVE, 0), (EXCLUSIVE, -1), (MIG, 0)])
def test_a_claim_that_contradicts_itself_is_the_caller_s_mistake(mode, count):
    with pytest.raises(ValueError, match="a claim of"):
        place(claim(gpus=count, mode=mode), (node(gpu(1)),), (), NOW)


def test_two_machines_of_one_name_are_the_caller_s_mistake():
    with pytest.raises(ValueError, match="one name"):
        place(claim(), (node(gpu(1)), node(gpu(2))), (), NOW)


def test_one_dead_of_four_leaves_three():
    wanted = claim(gpus=3, allowed=4)
    assert given_to(wanted, node(gpu(1), gpu(2, unhealthy="lost"), gpu(3), gpu(4))) == ids(1, 3, 4)


def test_one_closed_or_quarantined_instance_leaves_the_other():
    rules = PlacementRules(closed=frozenset(["MIG-00000001-0"]), quarantined=frozenset(["MIG-00000001-1"]))
    assert given_to(claim(mode=MIG), node(gpu(1, slices=3)), rules=rules) == ("MIG-00000001-2",)


def test_a_person_with_two_roles_is_charged_to_the_one_with_room():
    rules = PlacementRules(role_gpus=(("researcher", 8), ("student", 1)))
    wanted = claim(role="researcher+student")
    assert place(wanted, (node(gpu(1)),), (), NOW, rules=rules) == Placement(
        node="node-1", gpus=ids(1), role="researcher"
    )
    full = [lease(1, *(f"GPU-other-{n}" for n in range(8)), role="researcher")]
    answer = place(wanted, (node(gpu(1)),), full, NOW, rules=rules)
    assert answer == Placement(node="node-1", gpus=ids(1), role="student")


def test_a_lease_from_before_there_were_roles_counts_for_none():
    rules = PlacementRules(role_gpus=(("student", 1),))
    assert given_to(claim(), node(gpu(1), gpu(2)), leases=[lease(1, *ids(1))], rules=rules) == ids(2)


@pytest.mark.parametrize(
    ("held", "code"),
    [
        pytest.param(lease(1, node="b", memory_bytes=60 * GIB), None, id="on-the-other-machine"),
        pytest.param(lease(1, node="a", memory_bytes=60 * GIB), Code.HOST_MEMORY, id="on-this-machine"),
        pytest.param(lease(1, *ids(2), memory_bytes=60 * GIB), None, id="known-by-its-gpu"),
        pytest.param(lease(1, memory_bytes=60 * GIB), Code.HOST_MEMORY, id="unknown-counts-everywhere"),
        pytest.param(lease(1, node="c", memory_bytes=60 * GIB), Code.HOST_MEMORY, id="a-machine-nobody-knows"),
    ],
)
def test_a_lease_uses_the_memory_of_its_machine(held, code):
    boxes = (node(gpu(1), name="a", memory_bytes=64 * GIB), node(gpu(2), name="b", memory_bytes=64 * GIB))
    answer = given_to(claim(memory_bytes=8 * GIB, model="a100"), boxes[0], replace(boxes[1], gpus=()), leases=[held])
    if held.gpus:  # its GPU has to be there for the machine to be known
        taken = [held, lease(2, *ids(9))]
        answer = given_to(claim(memory_bytes=8 * GIB), *boxes, leases=taken)
    assert (answer.code if isinstance(answer, Refusal) else None) is code


def test_eighty_students_do_not_eat_the_researchers_memory():
    box = node(gpu(1), memory_bytes=256 * GIB, cpus=256)
    held = [lease(n, user=f"student{n}", memory_bytes=8 * GIB) for n in range(31)]
    student = claim(user="one-more", gpus=0, memory_bytes=8 * GIB)
    assert placed_on(student, box, leases=held) == "node-1"
    held.append(lease(31, memory_bytes=8 * GIB))
    assert place(student, (box,), held, NOW) == Refusal.of(Code.HOST_MEMORY, asked=8 * GIB, free=0, most=256 * GIB)
    assert placed_on(student, box, leases=held, rules=PlacementRules(memory_overcommit=1.5)) == "node-1"
