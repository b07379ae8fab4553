"""Which GPUs of a machine belong together.

What must hold: the answer has as many GPUs as were asked for whenever there are as many candidates, so NVLink decides
which GPUs somebody gets and never whether; equal sets are decided by UUID order.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from spawner.core.model import GPU

__all__ = ["Joined", "Links", "joined", "links_among"]

Links = tuple[tuple[str, frozenset[str]], ...]  # each GPU with its peers, in UUID order; hashable, for the memory below


class Joined(NamedTuple):
    """A set of GPUs, and what is bad about it: the smaller, the better.

    `missing` counts its pairs that have no direct link; `broken` the links from it to free GPUs that stay outside, each
    of which is one fewer for the next who asks for several.
    """

    missing: int
    broken: int
    uuids: tuple[str, ...]


def links_among(gpus: Iterable[GPU], chosen: Collection[str]) -> Links:
    """List the links among the chosen GPUs. One that only one side tells of is a link."""
    peers: dict[str, set[str]] = {uuid: set() for uuid in sorted(chosen)}
    for gpu in gpus:
        for peer in gpu.nvlink_peers:
            if gpu.uuid in peers and peer in peers and peer != gpu.uuid:
                peers[gpu.uuid].add(peer)
                peers[peer].add(gpu.uuid)
    return tuple((uuid, frozenset(found)) for uuid, found in peers.items())


@lru_cache(maxsize=4096)
def joined(links: Links, candidates: tuple[str, ...], count: int) -> Joined:
    """Choose `count` of the candidates, best joined first. There must be as many.

    A set is grown from each candidate in turn by whoever has the most links into it, and the best set is taken: exact
    for groups that are fully joined (bridges, NVSwitch), near enough for a mesh, and quick where trying all sets is
    not. Most machines do not change between two decisions, so the answers are remembered.
    """
    peers = dict(links)
    if not any(peers.values()):
        return Joined(count * (count - 1) // 2, 0, tuple(sorted(candidates)[:count]))
    return min(_judged(peers, _grown(peers, candidates, seed, count)) for seed in candidates)


def _grown(peers: dict[str, frozenset[str]], candidates: tuple[str, ...], seed: str, count: int) -> frozenset[str]:
    grown = {seed}
    rest = set(candidates) - grown
    while len(grown) < count:
        best = min(rest, key=lambda uuid: (-len(peers[uuid] & grown), len(peers[uuid]), uuid))
        grown.add(best)
        rest.remove(best)
    return frozenset(grown)


def _judged(peers: dict[str, frozenset[str]], chosen: frozenset[str]) -> Joined:
    inside = sum(len(peers[uuid] & chosen) for uuid in chosen) // 2
    broken = sum(len(peers[uuid] - chosen) for uuid in chosen)
    return Joined(len(chosen) * (len(chosen) - 1) // 2 - inside, broken, tuple(sorted(chosen)))
