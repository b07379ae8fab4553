"""The long form: GPUCAMPUS_ROUNDS rounds of each campaign, and every scene; their figures go into the documentation.

Run by `python -m tests.reliability` only: this file's name keeps it out of the ordinary runs, which have the short
forms in tests/engine/test_faults.py and tests/hub/test_faults.py.
"""

import os
import statistics
import time

import pytest

from tests.reliability import figures, hub_scenes, scenes
from tests.reliability.hub_campaign import DATABASES, START_TIMEOUT_S, HubCampaign
from tests.rig.fault_proxy import Fault

ROUNDS = int(os.environ.get("GPUCAMPUS_ROUNDS", "200"))
LOST_ROUNDS = max(1, ROUNDS // 4)  # for each database; everybody signs in and starts again in each of them
SCENE_ROUNDS = max(1, ROUNDS // 40)
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(120 + 60 * ROUNDS)]

WORDS = {Fault.ERROR: "answers 500", Fault.HANG: "hangs", Fault.REFUSE: "is down"}
FAULTS = pytest.mark.parametrize("fault", WORDS, ids=lambda fault: fault.name.lower())
ZEROS = "{} double grants, {} leaked leases, {} unexplained containers"


def note(what: str, campaign: HubCampaign, began: float, more: str = "") -> None:
    """Note a row about rounds on a real hub, and say where they broke it; fails where a zero is not one."""
    verdict = campaign.verdict
    at = f"{verdict.rounds} rounds, {verdict.at_a_call} at a call"
    figures.add(f"JupyterHub: {what}", at, ZEROS.format(*verdict.zeros) + more)
    took = (time.monotonic() - began) / verdict.rounds
    print(f"{what}: {took:.1f} s a round, broken at {dict(sorted(verdict.broken_at.items()))}")
    assert (*verdict.zeros, *verdict.hub_zeros) == (0,) * 5, "\n".join(verdict.notes)


async def test_a_killed_hub_leaves_nothing_behind(hub_campaign):
    began = time.monotonic()
    for number in range(ROUNDS):
        await hub_campaign.killed(number)
    middle = statistics.median(hub_campaign.restarts)
    note(
        "killed with -9 at an engine call of a start or a stop, then restarted",
        hub_campaign,
        began,
        f"; answers again after {middle:.1f} s",
    )


@pytest.mark.parametrize("whose", DATABASES)
async def test_a_killed_hub_that_has_lost_a_database_gives_no_gpu_twice(hub_campaign, whose):
    began = time.monotonic()
    for number in range(LOST_ROUNDS):
        await hub_campaign.killed(number, DATABASES[whose])
    files = " and ".join(DATABASES[whose])
    note(f"killed like that, and {files} deleted", hub_campaign, began, "; everybody has their uid and starts again")


async def test_stop_at_a_call_of_a_start_ends_it(hub_campaign):
    began = time.monotonic()
    for number in range(ROUNDS):
        await hub_campaign.stopped(number)
    refused = hub_campaign.verdict.refused_stops
    note(
        "Stop pressed at an engine call of a start, on the page and by the REST API",
        hub_campaign,
        began,
        f"; {refused} Stops answered with an error",
    )


@pytest.mark.parametrize("hub_campaign", [(f"c.Spawner.start_timeout = {START_TIMEOUT_S}",)], indirect=True)
async def test_a_start_that_runs_out_of_time_leaves_nothing_behind(hub_campaign):
    began = time.monotonic()
    for number in range(ROUNDS):
        await hub_campaign.timed_out(number)
    note("start_timeout at an engine call of a start", hub_campaign, began)


@FAULTS
async def test_a_hub_that_starts_without_its_engine(hub_campaign, fault):
    up, took = await hub_scenes.started_in_trouble(hub_campaign, fault)
    figures.add(
        f"JupyterHub: starts while the engine {WORDS[fault]}; one server paused, one that does not answer HTTP",
        "1 run",
        f"up after {up:.1f} s; nothing stopped or forgotten; all known {took:.1f} s after the engine answers",
    )


@pytest.mark.parametrize("at", ["poll", "start", "stop"])
@FAULTS
async def test_trouble_with_one_users_container_does_not_slow_the_others(campaign, fault, at):
    pairs = [await scenes.others_during(campaign, fault, at) for _ in range(SCENE_ROUNDS)]
    before, during = (statistics.median(column) for column in zip(*pairs, strict=True))
    figures.add(
        f"Engine {WORDS[fault]} at the {at} of one user's server",
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
