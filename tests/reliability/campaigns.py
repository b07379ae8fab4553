"""The long form: GPUCAMPUS_ROUNDS rounds of each campaign, and every scene; their figures go into the documentation.

Run by `python -m tests.reliability` only: this file's name keeps it out of the ordinary runs, which have the short
forms in tests/engine/test_faults.py.
"""

import os
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conftest import STATE
from tests.reliability import figures, scenes
from tests.reliability.campaign import Campaign
from tests.rig.engine import PrivateEngine
from tests.rig.fault_proxy import Fault
from tests.rig.probe_image import load_probe_image

ROUNDS = int(os.environ.get("GPUCAMPUS_ROUNDS", "200"))
SCENE_ROUNDS = max(1, ROUNDS // 40)
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(60 + 60 * ROUNDS)]

KINDS = {
    "killed": "Hub killed with -9 at an engine call of a start or a stop, then restarted",
    "cancelled": "Stop pressed at an engine call of a start",
    "late": "Stop pressed during a create whose container appears a second later",
    "timed_out": "start_timeout at an engine call of a start",
}


@pytest.fixture(scope="session")
def image(engine: PrivateEngine) -> str:
    return load_probe_image(engine, STATE.parent / "cache")


@pytest_asyncio.fixture
async def campaign(engine: PrivateEngine, image: str, tmp_path: Path) -> AsyncIterator[Campaign]:
    async with Campaign.on(engine, image, tmp_path) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
async def test_rounds_of_breaking_leave_nothing_behind(campaign, kind):
    began = time.monotonic()
    for number in range(ROUNDS):
        await getattr(campaign, kind)(number)
    verdict = campaign.verdict
    figures.add(
        KINDS[kind],
        f"{verdict.rounds} rounds, {verdict.at_a_call} at a call",
        "{} double grants, {} leaked leases, {} unexplained containers".format(*verdict.zeros),
    )
    print(f"{kind}: {time.monotonic() - began:.0f} s, broken at {dict(sorted(verdict.broken_at.items()))}")
    assert verdict.zeros == (0, 0, 0), "\n".join(verdict.notes)


@pytest.mark.parametrize("at", ["poll", "start", "stop"])
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.HANG, Fault.REFUSE], ids=lambda fault: fault.name.lower())
async def test_trouble_with_one_users_container_does_not_slow_the_others(campaign, fault, at):
    pairs = [await scenes.others_during(campaign, fault, at) for _ in range(SCENE_ROUNDS)]
    before, during = (statistics.median(column) for column in zip(*pairs, strict=True))
    words = {Fault.ERROR: "answers 500", Fault.HANG: "hangs", Fault.REFUSE: "refuses"}[fault]
    figures.add(
        f"Engine {words} at the {at} of one user's server",
        f"{SCENE_ROUNDS * scenes.STARTS} starts of another",
        f"lease kept, no end invented; others start in {during:.2f} s, {during / before:.1f} x the usual",
    )
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)
    assert during <= 2 * before


async def test_a_stop_that_never_ends(campaign):
    stopped, started = await scenes.stuck_stop(campaign)
    figures.add(
        "One container that the engine never ends (calls cut short: 5 s)",
        "1 run",
        f"quarantined after {stopped:.1f} s; that person's next start without a GPU takes {started:.1f} s",
    )
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.HANG, Fault.REFUSE], ids=lambda fault: fault.name.lower())
async def test_a_hub_that_starts_without_its_engine(campaign, fault):
    took = await scenes.engine_down_at_start(campaign, fault)
    words = {Fault.ERROR: "answers 500", Fault.HANG: "hangs", Fault.REFUSE: "is down"}[fault]
    figures.add(
        f"Hub starts while the engine {words}, one server paused",
        "1 run",
        f"nothing stopped or forgotten; all known {took:.1f} s after the engine answers",
    )
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)


async def test_a_hub_that_has_lost_its_database(campaign):
    await scenes.database_lost(campaign)
    figures.add(
        "Hub killed and its database deleted",
        "1 run",
        "every lease kept; each person's next start ends the earlier one",
    )
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)


async def test_containers_removed_behind_the_hub(campaign):
    seen = [await scenes.removed_behind(campaign, with_events=True) for _ in range(SCENE_ROUNDS)]
    missed = [await scenes.removed_behind(campaign, with_events=False) for _ in range(SCENE_ROUNDS)]
    figures.add(
        "Container removed behind the hub's back", f"{SCENE_ROUNDS} runs", f"known after {max(seen):.2f} s at most"
    )
    figures.add("The same without the event stream", f"{SCENE_ROUNDS} runs", f"known after {max(missed):.1f} s at most")
    assert max(seen) < 1
    assert max(missed) < 60


async def test_the_engine_is_killed_under_load(campaign):
    took = [(await scenes.engine_killed(campaign))[1] for _ in range(SCENE_ROUNDS)]
    figures.add(
        "Engine killed with -9 under load and restarted, without live-restore",
        f"{SCENE_ROUNDS} runs",
        f"leases are the running containers again {max(took):.1f} s after it answers, at most",
    )
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)
