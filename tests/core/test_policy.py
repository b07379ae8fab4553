"""Who gets which GPU: the properties first, then rows by name.

Elsewhere: `no_starvation` in test_queue.py; `rebuild_is_lossless` and `conflicts_are_reported` in test_ledger.py.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spawner.core.ledger import Container, rebuild, to_labels
from spawner.core.model import GIB, Code, Lease, MIGInstance, Mode, Placement, PlacementRules, Refusal
from spawner.core.policy import gpus_held, place
from spawner.messages import sentence

from . import strategies as make
from .strategies import NOW, Cluster, claim, given_to, gpu, ids, lease, linked, node, placed_on

CLAIMS = st.lists(make.claims, min_size=2, max_size=6)
PLAIN = ("plain",)
MIG, SHARED, EXCLUSIVE = Mode.MIG, Mode.SHARED, Mode.EXCLUSIVE
quick = settings(max_examples=40)


def holders(cluster: Cluster, uuid: str) -> list[Lease]:
    return [item for item in cluster.leases if uuid in item.gpus]


def withheld(cluster: Cluster) -> set[str]:
    return set(cluster.withheld).union(*(orphan.gpus for orphan in cluster.orphans))


@quick
@given(make.clusters(), CLAIMS)
def test_exclusive_never_shared(cluster, claims):
    for before, wanted, new in cluster.grants(claims):
        assert len(set(new.gpus)) == wanted.gpus
        assert withheld(cluster).isdisjoint(new.gpus)
        for uuid in new.gpus:
            others = holders(before, uuid)
            assert wanted.mode is Mode.SHARED or not others
            assert all(other.mode is Mode.SHARED for other in others)


@quick
@given(
    make.clusters(flavours=PLAIN, memory=(64,)),
    st.lists(make.wanting(EXCLUSIVE, SHARED) | make.claims, min_size=3, max_size=6),
)
def test_never_above_entitlement(cluster, claims):
    caps = dict(cluster.rules.role_gpus)
    for before, wanted, new in cluster.grants(claims):
        if wanted.gpus:
            assert gpus_held(wanted.user, before.leases) + wanted.gpus <= wanted.entitlement.gpus
            assert new.role in wanted.entitlement.role.split("+")
            held = sum(len(item.gpus) for item in before.leases if item.role == new.role)
            assert new.role not in caps or held + wanted.gpus <= caps[new.role]


@quick
@given(make.clusters(flavours=("plain", "plain", "mig"), memory=(64,)), make.wanting(*Mode), st.randoms())
def test_deterministic(cluster, wanted, random):
    def shuffled(items: Any) -> tuple[Any, ...]:
        return tuple(random.sample(list(items), len(items)))

    def mixed(item: Any) -> Any:
        return replace(item, mig=shuffled(item.mig), nvlink_peers=shuffled(item.nvlink_peers))

    boxes = [replace(box, gpus=shuffled([mixed(item) for item in box.gpus])) for box in cluster.nodes]
    other = replace(
        cluster, nodes=shuffled(boxes), leases=shuffled(cluster.leases), withheld=shuffled(cluster.withheld)
    )
    assert other.place(wanted) == cluster.place(wanted)


@settings(max_examples=70)
@given(make.clusters(most=3, flavours=("plain", "mig"), memory=(16,)), make.wanting(*Mode), st.data())
def test_freeing_never_hurts(cluster, wanted, data):
    if cluster.leases and isinstance(cluster.place(wanted), Placement):
        freed = data.draw(st.sampled_from(cluster.leases))
        fewer = replace(cluster, leases=tuple(item for item in cluster.leases if item != freed))
        assert isinstance(fewer.place(wanted), Placement)


@settings(max_examples=70)
@given(make.clusters(), make.claims)
def test_refusal_names_the_constraint(cluster, wanted):
    answer = cluster.place(wanted)
    if isinstance(answer, Placement):
        return
    params: dict[str, Any] = dict(answer.params)
    match answer.code:
        case Code.GPU_ENTITLEMENT | Code.ROLE_GPUS:
            assert params["asked"] + params["held"] > params["allowed"]
        case Code.NO_GPUS:
            assert params["asked"] > params["exist"]
        case Code.MIG_ONE | Code.SHARED_ONE:
            assert params["asked"] > params["most"]
        case Code.MODE_NOT_OFFERED:
            assert params["mode"] in (Mode.MIG, Mode.SHARED)
        case Code.NODES_CLOSED:
            assert params["closed"] == params["exist"] == len(cluster.nodes)
        case Code.DRIVER_TOO_OLD:
            assert params["driver"] < params["needed"]
        case Code.HOST_MEMORY | Code.HOST_CPUS:
            assert params["asked"] > params["free"]
        case _:
            assert params["asked"] == wanted.gpus > params["free"]
            standing = next((word for word in STANDINGS if word in params), None)
            assert standing is None or 0 < params[standing] <= params["exist"]
    for language in ("en", "zh"):
        assert "?" not in sentence(answer, language)


STANDINGS = ("unhealthy", "quarantined", "closed", "foreign", "leased")


@quick
@given(
    make.clusters(most=3, flavours=("mig", "mig", "plain"), memory=(64,)),
    st.lists(make.wanting(MIG, EXCLUSIVE), min_size=2, max_size=5),
)
def test_mig_parent_never_with_slice(cluster, claims):
    for before, wanted, new in cluster.grants(claims):
        taken = withheld(cluster).union(*(item.gpus for item in before.leases))
        for uuid in new.gpus:
            parent = before.gpu(uuid)
            if wanted.mode is Mode.MIG:
                assert uuid != parent.uuid
                assert parent.uuid not in taken
            else:
                assert not parent.mig


@quick
@given(make.clusters(most=2, flavours=PLAIN, memory=(64,)), st.lists(make.wanting(SHARED), min_size=3, max_size=6))
def test_shares_never_above_n(cluster, claims):
    by_gpu = dict(cluster.rules.shares_by_gpu)
    for before, wanted, new in cluster.grants(claims):
        if wanted.mode is Mode.SHARED:
            (uuid,) = new.gpus
            assert len(holders(before, uuid)) < by_gpu.get(uuid, cluster.rules.shares_per_gpu)


@quick
@given(
    make.clusters(most=2, flavours=PLAIN, memory=(4, 8)),
    st.lists(make.wanting(Mode.NONE) | make.wanting(EXCLUSIVE), min_size=4, max_size=8),
)
def test_host_memory_never_overcommitted(cluster, claims):
    names = {box.name for box in cluster.nodes}
    on = {item.uuid: box.name for box in cluster.nodes for item in box.gpus}
    on |= {part.uuid: box.name for box in cluster.nodes for item in box.gpus for part in item.mig}
    for before, wanted, new in cluster.grants(claims):
        box = next(box for box in cluster.nodes if box.name == new.node)
        here = [
            holder
            for holder in (*before.leases, *before.orphans)
            if new.node in ({holder.node} & names or {on[uuid] for uuid in holder.gpus} or names)
        ]
        memory = sum(item.memory_bytes for item in here) + wanted.limits.memory_bytes
        assert memory <= box.memory_bytes * cluster.rules.memory_overcommit - cluster.rules.memory_reserve_bytes
        cpus = sum(item.cpus for item in here) + wanted.limits.cpus
        assert cpus <= box.cpus * cluster.rules.cpu_overcommit


@quick
@given(make.clusters(most=3), st.lists(make.wanting(*Mode), min_size=2, max_size=5), st.data())
def test_unhealthy_never_placed_never_freed(cluster, claims, data):
    for before, _, new in cluster.grants(claims):
        for uuid in new.gpus:
            parent = before.gpu(uuid)
            assert not parent.unhealthy
            assert not parent.foreign_processes
            assert {uuid, parent.uuid, new.node}.isdisjoint(cluster.rules.closed | cluster.rules.quarantined)
    # a GPU dies or vanishes under its lease, the hub learns everything anew, the GPU comes back: it is still leased
    if held := sorted({uuid for item in cluster.leases if item.mode is not Mode.SHARED for uuid in item.gpus}):
        uuid = data.draw(st.sampled_from(held))
        good = cluster.gpu(uuid)
        left = data.draw(st.sampled_from([(replace(good, unhealthy="lost"),), ()]))
        sick = tuple(
            replace(box, gpus=tuple(now for item in box.gpus for now in (left if item == good else (item,))))
            for box in cluster.nodes
        )
        containers = [
            Container(id=item.id, name=item.id, state="running", labels=to_labels(item)) for item in cluster.leases
        ]
        again = replace(cluster, nodes=sick, leases=rebuild(containers).leases)
        assert again.leases == cluster.leases
        for then in (again, replace(again, nodes=cluster.nodes)):
            assert all(uuid not in new.gpus for _, _, new in then.grants(claims))


def test_two_claims_get_two_gpus_and_a_third_is_told_how_many_are_leased():
    nodes = (node(gpu(1), gpu(2)),)
    first = place(claim(user="ann"), nodes, (), NOW)
    assert first == Placement(node="node-1", gpus=("GPU-00000001",), role="student")
    held: tuple[Lease, ...] = (lease(1, "GPU-00000001", user="ann"),)
    assert given_to(claim(user="bob"), *nodes, leases=held) == ("GPU-00000002",)
    held = (*held, lease(2, "GPU-00000002", user="bob"))
    answer = place(claim(user="cem"), nodes, held, NOW)
    assert answer == Refusal.of(Code.GPUS_LEASED, asked=1, free=0, leased=2, exist=2)


SPREAD = PlacementRules(ranking="spread")


@pytest.mark.parametrize(("rules", "name"), [(PlacementRules(), "b"), (SPREAD, "a")])
def test_binpack_fills_the_fullest_machine_and_spread_takes_the_emptiest(rules, name):
    boxes = (node(gpu(1), gpu(2), gpu(3), name="a"), node(gpu(4), gpu(5), gpu(6), name="b"))
    assert placed_on(claim(), *boxes, leases=[lease(1, *ids(4))], rules=rules) == name


@pytest.mark.parametrize(("rules", "name"), [(PlacementRules(), "b"), (SPREAD, "c")])
def test_a_server_without_gpu_goes_to_a_machine_without_gpus(rules, name):
    boxes = (node(gpu(1), name="a"), node(name="b", memory_bytes=64 * GIB), node(name="c", memory_bytes=128 * GIB))
    assert placed_on(claim(gpus=0), *boxes, rules=rules) == name


def test_several_gpus_come_from_one_machine():
    assert place(claim(gpus=2, allowed=2), (node(gpu(1), name="a"), node(gpu(2), gpu(3), name="b")), (), NOW) == (
        Placement(node="b", gpus=ids(2, 3), role="student")
    )


def test_ties_end_in_uuid_order():
    assert given_to(claim(), node(gpu(3), name="a"), node(gpu(2), gpu(4), name="b"), node(gpu(1), name="c")) == ids(1)


PAIRS = node(*linked([gpu(1), gpu(4)], [gpu(2), gpu(5)], [gpu(3)]), name="pairs")


def test_two_gpus_are_a_pair():
    assert given_to(claim(gpus=2, allowed=2), PAIRS) == ids(1, 4)
    assert given_to(claim(gpus=2, allowed=2), PAIRS, leases=[lease(1, *ids(4))]) == ids(2, 5)


def test_three_gpus_are_a_pair_and_the_one_that_breaks_none():
    assert given_to(claim(gpus=3, allowed=3), PAIRS) == ids(1, 3, 4)


def test_a_pair_on_another_machine_is_better_than_two_strangers_on_a_full_one():
    strangers = node(gpu(6), gpu(7), name="strangers")
    assert given_to(claim(gpus=2, allowed=2), strangers, PAIRS) == ids(1, 4)


def test_one_gpu_is_the_one_without_a_partner():
    assert given_to(claim(), PAIRS) == ids(3)
    assert given_to(claim(), PAIRS, leases=[lease(1, *ids(3))]) == ids(1)
    assert given_to(claim(), PAIRS, leases=[lease(1, *ids(3)), lease(2, *ids(2))]) == ids(5)


def test_a_switch_is_filled_where_it_is_broken_already():
    switches = [node(*linked([gpu(n) for n in range(start, start + 4)]), name=f"switch-{start}") for start in (10, 20)]
    assert given_to(claim(), *switches, leases=[lease(1, *ids(20))]) == ids(21)
    assert given_to(claim(), *switches, leases=[lease(1, *ids(20))], rules=SPREAD) == ids(10)


def test_wishes_choose_among_gpus():
    small = replace(gpu(1), name="NVIDIA A10", memory_bytes=24 * GIB)
    assert given_to(claim(model="A10"), node(small, gpu(2))) == ids(1)
    assert given_to(claim(model="80gb a100"), node(small, gpu(2))) == ids(2)
    assert given_to(claim(gpu_memory_bytes=48 * GIB), node(small, gpu(2))) == ids(2)


def split(number: int, *sizes: int) -> Any:
    parts = tuple(
        MIGInstance(uuid=f"MIG-{number}-{place}", profile=f"{size}g", memory_bytes=size * GIB)
        for place, size in enumerate(sizes)
    )
    return replace(gpu(number), mig_enabled=True, mig=parts)


@pytest.mark.parametrize(
    ("wish", "leases", "uuid"),
    [
        pytest.param({}, (), "MIG-1-1", id="the-smallest"),
        pytest.param({"gpu_memory_bytes": 15 * GIB}, (), "MIG-1-2", id="the-smallest-that-is-enough"),
        pytest.param({"profile": "40g"}, (), "MIG-1-0", id="the-profile-asked-for"),
        pytest.param({}, [lease(1, "MIG-2-0")], "MIG-2-1", id="on-the-gpu-used-most"),
        pytest.param({}, [lease(1, "MIG-1-1"), lease(2, "MIG-2-1")], "MIG-1-2", id="the-next-larger-one"),
    ],
)
def test_an_instance_is_the_smallest_that_will_do(wish, leases, uuid):
    box = node(split(1, 40, 10, 20), split(2, 40, 10, 20))
    assert given_to(claim(mode=MIG, **wish), box, leases=leases) == (uuid,)


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [
        pytest.param("binpack", [3, 3, 1, 1, 2, 2], id="fill-one-gpu-first"),
        pytest.param("spread", [3, 1, 2, 1, 2, 3], id="one-each-first"),
    ],
)
def test_shares_fill_or_spread(ranking, expected):
    """GPU 3 has no partner, so that opening it breaks no pair."""
    box = node(*linked([gpu(1), gpu(2)], [gpu(3)]))
    leases: list[Lease] = []
    for number in expected:
        rules = PlacementRules(ranking=ranking, shares_per_gpu=2)
        assert given_to(claim(mode=SHARED), box, leases=leases, rules=rules) == ids(number)
        leases.append(lease(len(leases), *ids(number), mode=SHARED))


def test_a_gpu_of_its_own_number_of_shares():
    rules = PlacementRules(shares_by_gpu=((ids(2)[0], 3),))
    assert given_to(claim(mode=SHARED), node(gpu(1), gpu(2)), rules=rules) == ids(2)
