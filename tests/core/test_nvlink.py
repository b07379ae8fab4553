"""GPUs that belong together are given together."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spawner.core.nvlink import Joined, joined, links_among

from .strategies import gpu, ids, linked


def missing(links, chosen) -> int:
    peers = dict(links)
    return sum(b not in peers[a] for a, b in combinations(chosen, 2))


@settings(max_examples=60)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 8), st.randoms())
def test_of_groups_that_are_fully_joined_no_better_set_exists(sizes, count, random):
    numbers = list(range(sum(sizes)))
    random.shuffle(numbers)
    groups = [[gpu(numbers.pop()) for _ in range(size)] for size in sizes]
    gpus = linked(*groups)
    uuids = tuple(sorted(item.uuid for item in gpus))
    if count <= len(uuids):
        links = links_among(gpus, uuids)
        best = joined(links, uuids, count)
        assert len(set(best.uuids)) == count
        assert best.missing == missing(links, best.uuids)
        if count <= max(sizes) or len(set(sizes)) == 1:
            assert best.missing == min(missing(links, other) for other in combinations(uuids, count))


@pytest.mark.parametrize(("count", "expected"), [(1, ids(0)), (2, ids(0, 1)), (4, ids(0, 3, 5, 6))])
def test_a_mesh_of_two_quads(count, expected):
    """Two groups of four, each GPU with one partner in the other: 0-3-5-6 and 1-2-4-7, joined 0-1, 2-3, 4-5, 6-7."""
    quads = linked([gpu(n) for n in (0, 3, 5, 6)], [gpu(n) for n in (1, 2, 4, 7)])
    mesh = [replace(item, nvlink_peers=(*item.nvlink_peers, *ids(item.index ^ 1))) for item in quads]
    assert joined(links_among(mesh, ids(*range(8))), ids(*range(8)), count).uuids == expected


def test_a_link_that_one_side_tells_of_is_a_link():
    gpus = [replace(gpu(1), nvlink_peers=ids(3)), gpu(2), gpu(3)]
    assert joined(links_among(gpus, ids(1, 2, 3)), ids(1, 2, 3), 2) == Joined(0, 0, ids(1, 3))


def test_links_to_what_is_not_free_do_not_count():
    gpus = linked([gpu(1), gpu(2)], [gpu(3)])
    assert links_among(gpus, ids(1, 3)) == ((ids(1)[0], frozenset()), (ids(3)[0], frozenset()))


def test_without_links_uuid_order_decides():
    assert joined(links_among([gpu(1), gpu(2), gpu(3)], ids(1, 2, 3)), ids(1, 2, 3), 2) == Joined(1, 0, ids(1, 2))
