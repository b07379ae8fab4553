"""A round of each campaign of tests/reliability on a real JupyterHub, so that every run of the tests has them."""

import pytest

from tests.reliability.hub_campaign import DATABASES

pytestmark = [pytest.mark.docker, pytest.mark.hub]

AFTER_CREATE, BEFORE_START = 8, 3  # rounds count through the calls of a start, first before and then after each


async def test_a_hub_killed_or_robbed_of_its_databases_and_a_stop_in_a_start_leave_nothing_behind(hub_campaign):
    await hub_campaign.killed(AFTER_CREATE)
    await hub_campaign.killed(BEFORE_START, DATABASES["both"])
    for number in (AFTER_CREATE, BEFORE_START):  # through the API, and on the page
        await hub_campaign.stopped(number)
    verdict = hub_campaign.verdict
    assert (*verdict.zeros, *verdict.hub_zeros) == (0,) * 5, "\n".join(verdict.notes)
    assert verdict.at_a_call, verdict.broken_at
