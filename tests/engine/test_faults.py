"""The campaigns of tests/reliability, a few rounds of each, so that every run of the tests has them."""

import pytest

from tests.reliability import scenes
from tests.rig.fault_proxy import Fault

pytestmark = pytest.mark.docker

ROUNDS = 10


@pytest.mark.parametrize("kind", ["killed", "cancelled", "late", "timed_out"])
async def test_a_start_or_stop_broken_at_any_engine_call_leaves_nothing_behind(campaign, kind):
    for number in range(ROUNDS):
        await getattr(campaign, kind)(number)
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)
    assert campaign.verdict.at_a_call, campaign.verdict.broken_at


@pytest.mark.parametrize("at", ["poll", "start", "stop"])
async def test_trouble_with_one_users_container_keeps_the_lease_and_lets_others_start(campaign, at):
    before, during = await scenes.others_during(campaign, Fault.HANG, at)
    print(f"others start in {before:.2f} s, and in {during:.2f} s while the engine hangs at one user's {at}")
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)


async def test_a_stop_that_never_ends_is_quarantined_and_its_person_starts_without_a_gpu(campaign):
    await scenes.stuck_stop(campaign)
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.REFUSE], ids=["hangs", "refuses"])
async def test_a_hub_that_starts_without_its_engine_stops_and_forgets_nothing(campaign, fault):
    await scenes.engine_down_at_start(campaign, fault)
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)


@pytest.mark.parametrize(("with_events", "limit_s"), [(True, 10), (False, 60)], ids=["by-event", "by-listing"])
async def test_a_container_removed_behind_the_hub_is_known_soon(campaign, with_events, limit_s):
    assert await scenes.removed_behind(campaign, with_events=with_events) < limit_s


async def test_a_hub_that_has_lost_its_database_gives_no_gpu_twice(campaign):
    await scenes.database_lost(campaign)
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)


async def test_after_an_engine_crash_the_hub_knows_the_truth_within_a_minute(campaign):
    _, took = await scenes.engine_killed(campaign)
    assert took < 60
    assert campaign.verdict.zeros == (0, 0, 0), "\n".join(campaign.verdict.notes)
