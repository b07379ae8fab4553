"""place + reserve is one step: no interleaving gives one GPU to two people."""

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spawner.arbiter import Arbiter, Refused
from spawner.core.ledger import Container, to_labels
from spawner.core.model import Code
from spawner.docker_api import Engine
from spawner.state_cache import StateCache
from tests.core.strategies import claim, gpu, lease, node
from tests.rig.waiting import wait_until

GPUS = tuple(gpu(number) for number in range(4))


@pytest.fixture
def arbiter():
    """An arbiter whose engine has been listed and is empty; nothing here calls the engine."""
    engine = Engine()
    engine.cache.asked(0)
    engine.cache.fresh = True
    numbers = iter(range(1_000_000))
    yield Arbiter(
        engine,
        hub="campus",
        nodes=lambda: (node(*GPUS),),
        clock=lambda: datetime.now(UTC),
        new_id=lambda: f"lease-{next(numbers)}",
    )
    engine.close()


async def test_a_hundred_storms_give_no_gpu_twice_and_refuse_exactly_the_rest(arbiter):
    dice = random.Random(20261130)

    async def press_start(user: str) -> tuple[str, ...] | Code:
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        try:
            granted: tuple[str, ...] = arbiter.reserve(claim(user=user), image="sha256:0").gpus
        except Refused as refused:
            return Code(refused.refusal.code)
        await asyncio.sleep(0)
        return granted

    for _ in range(100):
        answers = await asyncio.gather(*(press_start(f"user{number}") for number in range(len(GPUS) + 3)))
        granted = [uuid for answer in answers if isinstance(answer, tuple) for uuid in answer]
        assert sorted(granted) == sorted(item.uuid for item in GPUS)
        assert answers.count(Code.GPUS_LEASED) == 3
        arbiter._reserved.clear()


def test_reservations_and_containers_of_one_lease_are_counted_once(arbiter):
    held = arbiter.reserve(claim(), image="sha256:0")
    arbiter.engine.cache.put(Container(id="1", name="n", state="created", labels=to_labels(held)))
    assert arbiter.ledger().leases == (held,)


def test_nothing_is_granted_while_the_engine_does_not_answer(arbiter):
    arbiter.engine.cache.fresh = False
    with pytest.raises(Refused) as refused:
        arbiter.reserve(claim(gpus=0), image="sha256:0")
    assert refused.value.refusal.code is Code.ENGINE_UNKNOWN


def test_a_listing_never_forgets_a_container_by_itself(arbiter):
    known = Container(id="1", name="n", state="running", labels=to_labels(lease(1, "GPU-00000001")))
    arbiter.engine.cache.put(known)
    assert arbiter.engine.cache.merge([], since=arbiter.engine.cache.version) == ["1"]
    assert list(arbiter.engine.cache) == [known]


def told(action: str, attributes: dict[str, str], at_ns: int = 1) -> dict[str, Any]:
    """An event, as the engine writes it."""
    return {"Action": action, "timeNano": at_ns, "Actor": {"ID": "1", "Attributes": attributes}}


@pytest.mark.parametrize(
    ("actions", "state"),
    [
        pytest.param(["create"], "created", id="created"),
        pytest.param(["create", "start"], "running", id="started"),
        pytest.param(["create", "start", "oom"], "running", id="a-child-ran-out-of-memory"),
        pytest.param(["create", "start", "pause"], "paused", id="paused"),
        pytest.param(["create", "start", "die"], "exited", id="died"),
        pytest.param(["create", "start", "die", "destroy"], None, id="removed"),
    ],
)
def test_events_move_the_cache(arbiter, actions, state):
    attributes = to_labels(lease(1, "GPU-00000001")) | {"name": "n", "image": "i", "maintainer": "m"}
    for action in actions:
        ended = arbiter.engine.cache.apply(told(action, attributes))
        assert (ended is not None) == (action in ("die", "destroy"))
    found = arbiter.engine.cache.get("1")
    assert (found.state if found else None) == state
    assert found is None or arbiter.ledger().leases == (lease(1, "GPU-00000001"),)


@pytest.mark.parametrize("actions", [["create", "start"], ["start"], ["die"]], ids=lambda actions: actions[-1])
@pytest.mark.parametrize("asked_ns", [1_000, None], ids=["before-the-listing", "before-the-first-listing"])
def test_an_event_does_not_bring_back_what_a_later_listing_lacks(asked_ns, actions):
    """The engine repeats the last second's events to whoever subscribes: a GPU would look leased that is free."""
    cache, attributes = StateCache(), to_labels(lease(1, "GPU-00000001"))
    if asked_ns:
        assert cache.merge([], since=cache.asked(asked_ns)) == []
    for action in actions:
        assert cache.apply(told(action, attributes, 999)) is None
    assert list(cache) == []
    cache.asked(1_000)
    cache.apply(told("start", attributes, 1_001))
    assert [container.state for container in cache] == ["running"]


def test_a_container_that_only_an_event_told_of_is_asked_for_when_the_listing_lacks_it(arbiter):
    cache = arbiter.engine.cache
    asked = cache.asked(1)
    cache.apply(told("create", to_labels(lease(1, "GPU-00000001")), 2))
    assert cache.merge([], since=asked) == ["1"]


def test_a_death_of_a_container_nobody_knows_makes_no_lease(arbiter):
    """The engine may tell of a death after the removal."""
    assert arbiter.engine.cache.apply(told("die", to_labels(lease(1, "GPU-00000001")), 5)) is None
    assert arbiter.ledger().leases == ()


async def test_a_server_that_was_stopped_while_nobody_knew_its_container_is_ended_once_it_is_known(
    arbiter, monkeypatch
):
    ended: list[str] = []
    monkeypatch.setattr("spawner.arbiter.KNOWN_STEP_S", 0.01)
    monkeypatch.setattr(arbiter.endings, "end", lambda lease_id, _why: ended.append(lease_id))
    cache = arbiter.engine.cache
    cache.fresh = False
    ours = replace(lease(1, "GPU-00000001"), hub="campus", user="ann", server="", granted=datetime.now(UTC))
    arbiter.stop_when_known("ann", "")
    assert await still(arbiter, ended) == [], "the lease is kept while the engine does not answer"
    others = replace(ours, id="lease-2", user="bob", gpus=("GPU-00000002",))
    later = replace(ours, id="lease-3", gpus=("GPU-00000003",), granted=datetime.now(UTC) + timedelta(minutes=1))
    for number, one in enumerate((ours, others, later)):
        cache.put(Container(id=str(number), name="n", state="running", labels=to_labels(one)))
    cache.fresh = True
    await wait_until(lambda: not arbiter.endings.chores, 5, "what was stopped is ended")
    assert ended == [ours.id], "nobody else's, and not what was started since"


async def still(arbiter, ended: list[str]) -> list[str]:
    """What has been ended after some of the looks."""
    await asyncio.wait(tuple(arbiter.endings.chores._tasks.values()), timeout=0.05)
    return ended


def test_a_lease_names_the_machine_that_it_was_placed_on(arbiter):
    held = arbiter.reserve(claim(), image="sha256:0")
    assert held.node == node(*GPUS).name != ""
    assert to_labels(held)["gpucampus.node"] == held.node
