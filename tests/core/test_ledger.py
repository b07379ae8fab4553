"""Labels are the record: nothing is lost on the way there and back, and nothing unreadable is freed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core.ledger import LABEL, Conflict, Container, from_labels, rebuild, to_labels
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
    holders: dict[str, list[str]] = {}
    for lease in ledger.leases:
        for gpu in lease.gpus if lease.mode is not Mode.SHARED else ():
            holders.setdefault(gpu, []).append(lease.id)
    assert ledger.conflicts == tuple(
        Conflict(gpu=gpu, leases=tuple(ids)) for gpu, ids in sorted(holders.items()) if len(ids) > 1
    )
    assert len(ledger.leases) == len(leases), "both sides of a conflict are kept"


@pytest.mark.parametrize(
    ("label", "value"),
    [
        pytest.param("schema", "2", id="a-newer-version-wrote-it"),
        pytest.param("schema", "", id="no-version"),
        pytest.param("mode", "greedy", id="unknown-mode"),
        pytest.param("memory", "4G", id="memory-is-no-number"),
        pytest.param("granted", "yesterday", id="no-time"),
        pytest.param("granted", "2026-11-30T12:00:00", id="time-without-zone"),
    ],
)
def test_unreadable_labels_are_orphans_that_keep_their_gpus(label, value):
    ledger = rebuild([contained(make.lease(1, "GPU-1", "GPU-2"), **{label: value})])
    assert ledger.leases == ()
    assert ledger.withheld == {"GPU-1", "GPU-2"}
    assert ledger.orphans[0].why


@pytest.mark.parametrize("key", sorted(to_labels(make.lease(1))))
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
