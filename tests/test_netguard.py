"""While the hub runs the filter stays, and a start is refused only as long as containers do not reach the hub."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from spawner import netfilter, netguard
from spawner.core.model import Code, Refusal
from spawner.findings import Finding, Status
from spawner.messages import sentence
from spawner.netcheck import HUB, Report
from spawner.netfilter import FilterError
from spawner.netguard import LOOK_AGAIN_S, NetworkGuard
from spawner.settings import Settings, load
from tests.rig.waiting import wait_until
from tests.test_settings import EXAMPLE

OPEN = Finding(HUB, Status.OK, "answers")
SHUT = Finding(HUB, Status.FAIL, "ufw blocks it", "ufw allow it")
OTHER = Finding("containers to containers", Status.OK, "refused by our filter")
BLOCKED = Refusal.of(Code.HUB_BLOCKED, firewall="ufw", port=8081)


class World:
    """A machine whose firewall may be shut, and a guard on it."""

    def __init__(self, settings: Settings) -> None:
        self.shut = False
        self.broken = False
        self.now = 1000.0
        self.looked: list[bool] = []
        self.answers: list[bool] = []
        self.guard = NetworkGuard(settings, looks=self._look, answers=self._answer, clock=lambda: self.now)

    def _look(self, hub_only: bool) -> Report:
        self.looked.append(hub_only)
        if self.broken:
            raise OSError("no such thing")
        found = (SHUT if self.shut else OPEN,)
        return Report(found if hub_only else (OTHER, *found), "ufw" if self.shut else "")

    def _answer(self) -> bool:
        return self.answers.pop(0) if self.answers else True

    async def begun(self) -> NetworkGuard:
        self.guard.begin()
        await wait_until(lambda: self.guard.findings, 10)
        return self.guard


@pytest.fixture
def world() -> Iterator[World]:
    made = World(load(EXAMPLE))
    yield made
    made.guard.close()


async def test_nobody_is_refused_before_anybody_has_looked(world):
    assert await world.guard.refusal() is None
    assert world.looked == []


async def test_the_check_waits_until_the_hub_answers(world, monkeypatch):
    monkeypatch.setattr(netguard, "HUB_STEP_S", 0.0)
    world.answers = [False, False]
    await world.begun()
    assert world.answers == []
    assert world.looked == [False]


async def test_where_containers_reach_the_hub_nobody_is_refused_and_nothing_is_looked_at_again(world):
    guard = await world.begun()
    assert await guard.refusal() is None
    assert world.looked == [False]


async def test_a_blocked_hub_refuses_starts_until_a_new_look_finds_it_open(world):
    world.shut = True
    guard = await world.begun()
    assert await guard.refusal() == BLOCKED
    assert world.looked == [False], "it has just been looked at"
    world.now += LOOK_AGAIN_S
    assert await asyncio.gather(*(guard.refusal() for _ in range(5))) == [BLOCKED] * 5
    assert world.looked == [False, True], "one look for all who ask"
    world.shut, world.now = False, world.now + LOOK_AGAIN_S
    assert await guard.refusal() is None
    assert guard.findings == (OTHER, OPEN), "the rest of the last whole check is kept"


async def test_a_look_that_fails_leaves_what_was_known(world, caplog):
    world.shut = True
    guard = await world.begun()
    world.broken, world.now = True, world.now + LOOK_AGAIN_S
    assert await guard.refusal() == BLOCKED
    assert "the self-check of the network failed" in caplog.text


async def test_each_finding_is_logged_once_with_its_remedy(world, caplog):
    caplog.set_level(logging.INFO, logger="spawner.netguard")
    world.shut = True
    guard = await world.begun()
    world.now += LOOK_AGAIN_S
    await guard.refusal()
    assert caplog.text.count(f"network: {HUB}: ufw blocks it: ufw allow it") == 1


async def test_a_filter_that_somebody_flushed_is_made_again(world, monkeypatch, caplog):
    made: list[object] = []
    monkeypatch.setattr(netfilter, "establish", made.append)
    monkeypatch.setattr(netfilter, "present", lambda _bridge: bool(made))
    await world.guard.tend()
    await world.guard.tend()
    assert len(made) == 1
    assert "something flushed it" in caplog.text


async def test_a_filter_that_cannot_be_asked_for_ends_nothing(world, monkeypatch):
    def unknown(_bridge: str) -> bool:
        raise FilterError("the program nft is not installed")

    monkeypatch.setattr(netfilter, "present", unknown)
    await world.guard.tend()


def test_a_filter_that_cannot_be_made_is_an_error_in_the_log(monkeypatch, caplog):
    def fails(_filter: object) -> None:
        raise FilterError("nft ended with 1: not supported")

    monkeypatch.setattr(netfilter, "establish", fails)
    netguard.build_filter(load(EXAMPLE))
    assert "NOT kept from this machine's ports and networks: nft ended with 1" in caplog.text


def test_the_refusal_names_the_firewall_and_the_port():
    assert "ufw on its machine blocks port 8081" in sentence(BLOCKED)
    assert "ufw 阻止了端口 8081" in sentence(BLOCKED, "zh")
