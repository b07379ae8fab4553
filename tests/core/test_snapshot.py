"""Counting once and carrying on is the same as counting anew."""

from hypothesis import given, settings
from hypothesis import strategies as st

from spawner.core.model import Placement
from spawner.core.policy import decide
from spawner.core.snapshot import Snapshot

from . import strategies as make
from .strategies import Cluster


def counted(cluster: Cluster, *, without: int = 0) -> Snapshot:
    leases = cluster.leases[without:]
    return Snapshot.of(cluster.nodes, leases, withheld=cluster.withheld, orphans=cluster.orphans, rules=cluster.rules)


@settings(max_examples=30)
@given(make.clusters(), st.lists(make.claims, max_size=4))
def test_plus_equals_counting_anew(cluster, claims):
    snapshot = counted(cluster)
    for before, wanted, new in cluster.grants(claims):
        assert snapshot == counted(before)
        assert decide(wanted, snapshot) == Placement(node=new.node, gpus=new.gpus, role=new.role)
        snapshot = snapshot.plus(new)


@settings(max_examples=30)
@given(make.clusters())
def test_minus_equals_counting_anew(cluster):
    snapshot = counted(cluster)
    for number, lease in enumerate(cluster.leases, start=1):
        before, snapshot = snapshot, snapshot.minus(lease)
        assert snapshot == counted(cluster, without=number)
        assert before == counted(cluster, without=number - 1), "the old one has not changed"
