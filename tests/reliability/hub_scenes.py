"""Single scenes with a real JupyterHub. Each asserts what must hold, and returns the seconds that it measured."""

import asyncio
import time
from typing import Any

import httpx

from spawner.core.ledger import LABEL
from tests.reliability.hub_campaign import HubCampaign
from tests.rig.fault_proxy import Fault
from tests.rig.waiting import wait_until

__all__ = ["started_in_trouble"]

KNOWN_S = 60


async def started_in_trouble(campaign: HubCampaign, fault: Fault) -> tuple[float, float]:
    """Start the hub while its engine is in trouble, one server is paused, and one does not answer HTTP.

    Nothing is stopped or forgotten; once the engine answers, all is known, and what wakes up can be reached again. The
    one that never answers can be stopped by its person all the same. Gives the seconds until the hub is up, and from
    the engine's first answer until it knows all.
    """
    hub, people = campaign.hub, campaign.people
    for user in ("ann", "bob", "cem", "dan"):
        await campaign.act(user, "start")
    before = {row["Labels"][LABEL + "user"]: row for row in await asyncio.to_thread(hub.containers)}
    assert set(before) == {"ann", "bob", "cem", "dan"}
    client = hub.engine.client.api
    await asyncio.to_thread(client.pause, before["bob"]["Id"])
    for user in ("cem", "dan"):
        await _signal(campaign, before[user]["Id"], "STOP")
    hub.kill()
    await hub.gone()
    campaign.faults.set(fault)
    up = await hub.start()

    async def nobody_new() -> bool:
        return not await people["eva"].server()

    assert set(await hub.servers()) == set(before), "nothing is forgotten"
    assert not (await hub.look())["fresh"]
    refused = await people["eva"].press_start()
    # an engine that hangs is waited for, but not with the answer
    assert refused.status_code in (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.ACCEPTED), refused.text
    await wait_until(nobody_new, KNOWN_S, "nothing is granted")  # type: ignore[arg-type]
    campaign.faults.set(Fault.NONE)
    began = time.monotonic()
    leases = {row["Labels"][LABEL + "lease"] for row in before.values()}

    async def all_known() -> bool:
        state = await hub.look()
        return bool(state["fresh"]) and set(state["leases"]) == leases

    await wait_until(all_known, KNOWN_S, "the hub knows every lease")  # type: ignore[arg-type]
    took = time.monotonic() - began
    await _ready(campaign, "ann")
    rows = {row["Labels"][LABEL + "user"]: row["State"] for row in await asyncio.to_thread(hub.containers)}
    assert rows == {"ann": "running", "bob": "paused", "cem": "running", "dan": "running"}, "nothing is stopped"
    await asyncio.to_thread(client.unpause, before["bob"]["Id"])
    await _signal(campaign, before["cem"]["Id"], "CONT")
    for user in ("bob", "cem"):
        await _ready(campaign, user)
    answer = await people["dan"].press_stop(by_page=True)
    assert answer.status_code in (httpx.codes.ACCEPTED, httpx.codes.NO_CONTENT), f"{answer.status_code} {answer.text}"
    await campaign.judge(without="dan")
    assert (*campaign.verdict.zeros, *campaign.verdict.hub_zeros) == (0,) * 5, "\n".join(campaign.verdict.notes)
    return up, took


async def _signal(campaign: HubCampaign, container: str, name: str) -> None:
    """Send a signal to everything in a container but its first process."""
    api: Any = campaign.hub.engine.client.api
    made = await asyncio.to_thread(api.exec_create, container, ["sh", "-c", f"kill -{name} -1"])
    await asyncio.to_thread(api.exec_start, made["Id"])


async def _ready(campaign: HubCampaign, user: str) -> None:
    async def ready() -> bool:
        server = (await campaign.hub.servers()).get(user)
        assert server, f"{user}'s server was forgotten or stopped"
        return bool(server["ready"]) and await campaign.people[user].visit() == httpx.codes.OK

    await wait_until(ready, KNOWN_S, f"the server of {user} can be reached")  # type: ignore[arg-type]
