"""Labels are the record: nothing is lost on the way there and back, and nothing unreadable is freed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core.ledger import LABEL, Conflict, Container, foreign_labels, from_labels, rebuild, to_labels
from spawner.core.model import Lease, Mode

from . import strategies as make


def contained(lease: Lease, number: int = 0, **changed: str) -> Container:
    labels = to_labels(lease) | {LABEL + key: value for key, value in changed.items()}
    return Container(id=f"container-{number}", name=f"name-{number}", state="running", labels=labels)


@given(st.lists(make.leases, unique_by=lambda lease: lease.id, max_size=6), st.randoms())
def test_rebuild_is_lossless(leases, random):
    containers = [contained(lease, number) for number, lease in enumerate(leases)]
    random.shuffle(containers)
    ledger = rebuild(containers)
    assert ledger.leases == tuple(sorted(leases, key=lambda lease: lease.id))
    assert ledger.orphans == ()


@given(st.lists(make.leases, unique_by=lambda lease: lease.id, max_size=6))
def test_conflicts_are_reported(leases):
    ledger = rebuild(contained(lease, number) for number, lease in enumerate(leases))
    holders: dict[str, list[Lease]] = {}
    for lease in ledger.leases:
        for gpu in lease.gpus:
            holders.setdefault(gpu, []).append(lease)
    assert ledger.conflicts == tuple(
        Conflict(gpu=gpu, leases=tuple(lease.id for lease in held))
        for gpu, held in sorted(holders.items())
        if len(held) > 1 and {lease.mode for lease in held} != {Mode.SHARED}
    )
    assert len(ledger.leases) == len(leases), "both sides of a conflict are kept"


@pytest.mark.parametrize(
    ("label", "value"),
    [
        pytest.param("schema", "2", id="a-newer-version-wrote-it"),
        pytest.param("schema", "", id="no-version"),
        pytest.param("mode", "greedy", id="unknown-mode"),
        pytest.param("memory", "4G", id="memory-is-no-number"),
        pytest.param("memory", "-1", id="memory-below-nothing"),
        pytest.param("cpus", "nan", id="cpus-not-a-number"),
        pytest.param("cpus", "inf", id="cpus-without-end"),
        pytest.param("cpus", "-1", id="cpus-below-nothing"),
        pytest.param("granted", "yesterday", id="no-time"),
        pytest.param("granted", "2026-11-30T12:00:00", id="time-without-zone"),
    ],
)
def test_unreadable_labels_are_orphans_that_keep_their_gpus(label, value):
    ledger = rebuild([contained(make.lease(1, "GPU-1", "GPU-2"), **{label: value})])
    assert ledger.leases == ()
    assert ledger.withheld == {"GPU-1", "GPU-2"}
    assert ledger.orphans[0].why


def test_an_orphan_says_what_it_uses_as_far_as_it_can_be_read():
    lease = make.lease(1, "GPU-1", node="node-7", memory_bytes=5, cpus=1.5)
    newer = rebuild([contained(lease, schema="2")]).orphans[0]
    assert (newer.node, newer.memory_bytes, newer.cpus) == ("node-7", 5, 1.5)
    broken = rebuild([contained(lease, memory="4G", cpus="nan")]).orphans[0]
    assert (broken.gpus, broken.memory_bytes, broken.cpus) == (("GPU-1",), 0, 0)


LATER = {LABEL + "node", LABEL + "role"}


def test_containers_from_before_there_was_a_node_or_a_role_are_read():
    lease = make.lease(1, "GPU-1")
    labels = {key: value for key, value in to_labels(lease).items() if key not in LATER}
    assert from_labels(labels) == lease
    assert (lease.node, lease.role) == ("", "")


def test_every_label_is_written_whatever_the_lease_says():
    assert set(to_labels(make.lease(1))) >= LATER, "or an image's own would be believed"


def test_a_share_beside_an_exclusive_lease_is_a_conflict_and_two_shares_are_none():
    shares = [make.lease(n, "GPU-1", mode=Mode.SHARED) for n in (1, 2)]
    assert rebuild(contained(lease, n) for n, lease in enumerate(shares)).conflicts == ()
    mixed = [*shares, make.lease(3, "GPU-1")]
    ledger = rebuild(contained(lease, n) for n, lease in enumerate(mixed))
    assert ledger.conflicts == (Conflict(gpu="GPU-1", leases=("lease-1", "lease-2", "lease-3")),)


@pytest.mark.parametrize("key", sorted(set(to_labels(make.lease(1))) - LATER))
def test_a_missing_label_is_named(key):
    labels = to_labels(make.lease(1, "GPU-1"))
    del labels[key]
    with pytest.raises(ValueError, match=key.removeprefix(LABEL)):
        from_labels(labels)


def test_two_containers_with_one_lease_id_are_a_lease_and_an_orphan():
    first, second = make.lease(1, "GPU-1"), make.lease(1, "GPU-2")
    ledger = rebuild([contained(first, 1), contained(second, 2)])
    assert [lease.gpus for lease in ledger.leases] == [("GPU-1",)]
    assert ledger.withheld == {"GPU-2"}


def test_a_container_without_our_label_is_nobodys_business():
    assert rebuild([Container(id="1", name="postgres", state="running", labels={"other": "1"})]).leases == ()


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        pytest.param(
            {"gpucampus.variant": "cpu", "gpucampus.project": "gpucampus", "other": "1"}, (), id="our-own-build"
        ),
        pytest.param({"gpucampus.lease": "x"}, ("gpucampus.lease",), id="pretends-to-a-lease"),
        pytest.param({"gpucampus.variant": "cuda"}, ("gpucampus.variant",), id="pretends-to-another-variant"),
        pytest.param({"gpucampus.later": ""}, ("gpucampus.later",), id="a-label-of-a-later-version"),
    ],
)
def test_an_image_with_our_labels_is_found_out(labels, named):
    assert foreign_labels(labels, "cpu") == named
