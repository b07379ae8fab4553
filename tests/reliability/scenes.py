"""Single scenes of engine trouble. Each asserts what must hold, and returns the seconds that it measured."""

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.reliability.campaign import Campaign
from tests.rig.fault_proxy import Fault
from tests.rig.waiting import wait_until

__all__ = ["database_lost", "engine_down_at_start", "engine_killed", "others_during", "removed_behind", "stuck_stop"]

STARTS = 3
TRUTH_S = 60


async def others_during(campaign: Campaign, fault: Fault, at: str) -> tuple[float, float]:
    """Break one user's poll, start or stop; the seconds of others' starts without and with it."""
    hub, proxy = campaign.hub, campaign.proxy
    before = await _starts(campaign, "bob")
    if at != "start":
        mine = await hub.ask("start", user="ann")
        proxy.set(fault, _only(mine["container"]))
        if at == "stop":
            _, broken = hub.send("stop", user="ann")
            await _reached(campaign, "/stop")
        during = await _starts(campaign, "bob")
        if at == "poll":
            assert (await hub.ask("poll", user="ann"))["end"] is None, "no end is invented"
        else:
            assert not (await broken)["ok"] or fault is Fault.DELAY
        assert mine["lease"] in (await hub.ask("state"))["leases"], "unknown is not gone"
    else:
        proxy.set(fault, lambda line: "gpucampus-ann-" in line)
        _, broken = hub.send("start", user="ann")
        await _reached(campaign, "gpucampus-ann-")
        during = await _starts(campaign, "bob")
        assert not (await broken)["ok"]
    proxy.set(Fault.NONE)
    if at == "poll":
        assert (await hub.ask("poll", user="ann"))["end"] is None
        await hub.ask("stop", user="ann")
    await campaign.judge()
    return before, during


async def stuck_stop(campaign: Campaign) -> tuple[float, float]:
    """The engine ends one container never: seconds of its stop, and of that person's next start without a GPU."""
    hub, proxy = campaign.hub, campaign.proxy
    mine = await hub.ask("start", user="ann")
    proxy.set(Fault.HANG, _only(mine["container"]))
    began = time.monotonic()
    assert not (await hub.ask("stop", user="ann"))["ok"]
    stopped = time.monotonic() - began
    state = await hub.ask("state")
    assert list(state["quarantined"]) == [mine["lease"]]
    assert state["leases"][mine["lease"]] == mine["gpus"], "a quarantined lease keeps its GPU"
    began = time.monotonic()
    again = await hub.ask("start", user="ann", gpus=0)
    assert again["ok"], again
    started = time.monotonic() - began
    assert (await hub.ask("state"))["servers"]["ann"]["lease"] == again["lease"]
    proxy.set(Fault.NONE)
    await campaign.judge()
    state = await hub.ask("state")
    assert state["quarantined"] == {}
    assert list(state["leases"]) == [again["lease"]]
    return stopped, started


async def engine_down_at_start(campaign: Campaign, fault: Fault) -> float:
    """Start the hub while the engine is down and a server is paused; seconds until it knows all again."""
    mine = await campaign.hub.ask("start", user="ann")
    await asyncio.to_thread(campaign.engine.client.api.pause, mine["container"])
    campaign.hub.kill()
    await campaign.hub.gone()
    campaign.proxy.set(fault)
    await campaign.restart()
    state = await campaign.hub.ask("state")
    assert not state["fresh"]
    assert state["servers"]["ann"]["lease"] == mine["lease"], "nothing is forgotten"
    assert (await campaign.hub.ask("poll", user="ann"))["end"] is None, "unknown is not gone"
    assert (await campaign.hub.ask("start", user="bob"))["why"].startswith(("engine-unknown", "Engine"))
    campaign.proxy.set(Fault.NONE)
    began = time.monotonic()
    await _until(campaign, lambda state: state["fresh"] and mine["lease"] in state["leases"])
    took = time.monotonic() - began
    rows = await asyncio.to_thread(campaign.containers)
    assert [row["State"] for row in rows] == ["paused"], "nothing is stopped"
    await asyncio.to_thread(campaign.engine.client.api.unpause, mine["container"])
    await campaign.judge()
    return took


async def database_lost(campaign: Campaign) -> None:
    """Kill the hub and delete its database: the leases stay, and their people get their servers' places again."""
    users = ("ann", "bob", "cem")
    mine = {user: await campaign.hub.ask("start", user=user) for user in users}
    campaign.hub.kill()
    await campaign.hub.gone()
    campaign.database.unlink()
    await campaign.restart()
    state = await campaign.hub.ask("state")
    assert state["leases"] == {answer["lease"]: answer["gpus"] for answer in mine.values()}
    assert (await campaign.hub.ask("start", user="dan"))["ok"]
    assert (await campaign.hub.ask("start", user="eva"))["why"] == "gpus-leased"
    for user in users:
        assert (await campaign.hub.ask("start", user=user))["ok"], "the earlier one makes room"
    await campaign.judge()


async def removed_behind(campaign: Campaign, *, with_events: bool) -> float:
    """Remove a container behind the hub's back; seconds until the hub knows."""
    mine = await campaign.hub.ask("start", user="ann")
    if not with_events:
        campaign.proxy.set(Fault.REFUSE, lambda line: "/events" in line)
    await asyncio.to_thread(campaign.engine.client.api.remove_container, mine["container"], force=True)
    began = time.monotonic()
    await _until(campaign, lambda state: mine["lease"] not in state["leases"])
    took = time.monotonic() - began
    assert (await campaign.hub.ask("poll", user="ann"))["end"] is not None
    campaign.proxy.set(Fault.NONE)
    await campaign.hub.ask("stop", user="ann")
    return took


async def engine_killed(campaign: Campaign) -> tuple[float, float]:
    """Kill and restart the engine while servers run and start; seconds it was away, and until the hub knows all."""
    hub = campaign.hub
    await asyncio.gather(*(hub.ask("start", user=user) for user in ("ann", "bob")))
    under_way = [hub.send("start", user=user)[1] for user in ("cem", "dan")]
    await _reached(campaign, "/containers/create")
    began = time.monotonic()
    campaign.engine.restart()
    await asyncio.to_thread(campaign.engine.wait)
    away, began = time.monotonic() - began, time.monotonic()
    await asyncio.gather(*under_way)

    async def true_again() -> bool:
        state = await hub.ask("state", reap=True)
        rows = await asyncio.to_thread(campaign.containers)
        running = {row["Labels"]["gpucampus.lease"] for row in rows if row["State"] == "running"}
        return bool(state["fresh"]) and set(state["leases"]) == running and len(rows) == len(running)

    true: bool = await wait_until(true_again, TRUTH_S, what="the hub's leases are the engine's running containers")
    assert true
    for user in ("ann", "bob"):
        print(f"after the engine's crash the server of {user} has ended as", (await hub.ask("poll", user=user))["end"])
    took = time.monotonic() - began
    for user in list((await hub.ask("state"))["servers"]):
        await hub.ask("stop", user=user)
    await campaign.judge()
    return away, took


async def _starts(campaign: Campaign, user: str) -> float:
    """The median seconds of some starts."""
    took = []
    for _ in range(STARTS):
        began = time.monotonic()
        answer = await campaign.hub.ask("start", user=user)
        assert answer["ok"], answer
        took.append(time.monotonic() - began)
        await campaign.hub.ask("stop", user=user)
    return statistics.median(took)


async def _reached(campaign: Campaign, part: str) -> None:
    await wait_until(lambda: any(part in line for line in campaign.proxy.calls), 30, f"a call with {part}")


async def _until(campaign: Campaign, true: Callable[[dict[str, Any]], bool]) -> None:
    async def check() -> bool:
        return true(await campaign.hub.ask("state"))

    known: bool = await wait_until(check, TRUTH_S, what="the hub knows")
    assert known


def _only(container: str) -> Callable[[str], bool]:
    """Requests about one container: by its id, also where a removal of its lease is asked for."""
    return lambda line: container in line
