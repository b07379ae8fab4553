"""Races between what the arbiter does and what the engine tells of, on an engine that is made of answers."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from spawner.arbiter import Arbiter, Refused
from spawner.core.exits import EndCode
from spawner.core.ledger import LABEL, Container, to_labels
from spawner.core.model import Code, Lease
from spawner.docker_api import Engine, EngineFails, EngineRefuses, EngineSaysGone, EngineSilent
from tests.core.strategies import claim, gpu, lease, node
from tests.rig.waiting import wait_until


class Script:
    """Answers to engine calls, by method; a call waits while its method is in `held`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.trouble: dict[str, Exception] = {}
        self.held: dict[str, asyncio.Event] = {}
        self.rows: list[dict[str, Any]] = []
        self.exit_code = 0
        self.running: set[str] = set()

    def hold(self, method: str) -> asyncio.Event:
        self.held[method] = asyncio.Event()
        return self.held[method]

    async def call(self, method: str, *args: Any, lane: str = "", limit_s: float = 0, **kwargs: Any) -> Any:
        self.calls.append(method)
        await asyncio.sleep(0)
        answer = self._answer(method, *args, **kwargs) if method == "containers" else None
        if method in self.held:
            await self.held[method].wait()
        if method in self.trouble:
            raise self.trouble[method]
        return answer if method == "containers" else self._answer(method, *args, **kwargs)

    def _answer(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "containers":
            wanted = kwargs["filters"]["label"].partition("=")[2]
            return [dict(row) for row in self.rows if wanted in ("", row["Labels"][LABEL + "lease"])]
        if method == "create_container":
            self.rows.append({"Id": "c1", "Names": ["/n"], "State": "created", "Labels": kwargs["labels"]})
            return {"Id": "c1"}
        row = next((row for row in self.rows if row["Id"] == args[0]), None)
        if row is None:
            raise EngineSaysGone(args[0])
        if method == "remove_container":
            if not kwargs["force"] and row["State"] == "running":
                raise EngineRefuses("409: it runs")
            self.rows.remove(row)
        if method in ("start", "stop"):
            row["State"] = "running" if method == "start" else "exited"
        status = {
            "Status": row["State"],
            "Running": row["State"] == "running",
            "ExitCode": self.exit_code,
            "OOMKilled": False,
            "Error": "",
        }
        return {"State": status, "HostConfig": {"Memory": 1}}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest_asyncio.fixture
async def arbiter(script, monkeypatch):
    engine = Engine()
    engine.cache.asked(0)
    engine.cache.fresh = True
    monkeypatch.setattr(engine, "call", script.call)
    monkeypatch.setattr("spawner.endings.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("spawner.endings.LONGEST_PAUSE_S", 0.02)
    numbers = iter(range(1, 1000))
    made = Arbiter(
        engine,
        hub="campus",
        nodes=lambda: (node(gpu(1), gpu(2)),),
        clock=lambda: datetime.now(UTC),
        new_id=lambda: f"lease-{next(numbers)}",
    )
    engine._on_end = made.endings.bury
    yield made
    await made.close()


async def running(arbiter: Arbiter, **asked: Any) -> Lease:
    held = arbiter.reserve(claim(**asked), image="sha256:0")
    made = await arbiter.create(held.id, name="n")
    await arbiter.start(held.id, made["Id"])
    return held


def event(arbiter: Arbiter, action: str, held: Lease) -> None:
    attributes = {**to_labels(held), "name": "n"}
    arbiter.engine._apply({"Action": action, "timeNano": 1, "Actor": {"ID": "c1", "Attributes": attributes}})


async def quiet(arbiter: Arbiter) -> None:
    await wait_until(lambda: not arbiter.endings.chores, 5)


async def test_a_listing_from_before_the_start_does_not_make_a_server_look_unstarted(arbiter, script):
    held = arbiter.reserve(claim(), image="sha256:0")
    made = await arbiter.create(held.id, name="n")
    gate = script.hold("containers")
    listing = asyncio.create_task(arbiter.engine.refresh())
    await wait_until(lambda: "containers" in script.calls, 5)
    await arbiter.start(held.id, made["Id"])
    gate.set()
    await listing
    assert arbiter.engine.cache.get("c1").state == "running"
    arbiter.reap()
    await quiet(arbiter)
    assert arbiter.engine.cache.get("c1").state == "running"
    assert script.rows, "the running server was removed"


async def test_the_news_of_its_making_that_comes_last_does_not_make_a_server_look_unstarted(arbiter, script):
    held = await running(arbiter)
    event(arbiter, "create", held)
    assert arbiter.engine.cache.get("c1").state == "running"


async def test_a_server_that_looks_unstarted_is_looked_at_before_it_is_removed(arbiter, script):
    held = await running(arbiter)
    arbiter.engine.cache.put(Container(id="c1", name="n", state="created", labels=to_labels(held)))
    arbiter.reap()
    await quiet(arbiter)
    assert arbiter.engine.cache.get("c1").state == "running"
    assert script.rows


async def test_nothing_brings_back_a_container_that_is_gone(arbiter, script):
    held = arbiter.reserve(claim(), image="sha256:0")
    gate = script.hold("create_container")
    creating = asyncio.create_task(arbiter.create(held.id, name="n"))
    await wait_until(lambda: script.calls, 5)
    event(arbiter, "create", held)
    event(arbiter, "destroy", held)  # an operator was quick
    gate.set()
    await creating
    event(arbiter, "create", held)  # told a second time, after the stream broke
    assert arbiter.engine.cache.merge([Container(id="c1", name="n", state="created", labels={})], since=99) == []
    assert list(arbiter.engine.cache) == []


async def test_the_death_of_an_earlier_life_does_not_end_a_server(arbiter, script):
    held = await running(arbiter)
    event(arbiter, "die", held)
    await quiet(arbiter)
    assert arbiter.end_of(held.id) is None
    assert arbiter.engine.cache.get("c1").state == "running"
    assert script.rows


async def test_a_server_that_comes_back_to_life_is_not_removed_with_its_death(arbiter, script):
    held = await running(arbiter)
    script.rows[0]["State"] = "exited"
    gate = script.hold("remove_container")
    event(arbiter, "die", held)
    await wait_until(lambda: "remove_container" in script.calls, 5)
    script.rows[0]["State"] = "running"
    gate.set()
    await quiet(arbiter)
    assert script.rows


async def test_until_the_reason_of_an_end_is_read_there_is_none(arbiter, script):
    held = await running(arbiter)
    script.rows[0]["State"], script.exit_code = "exited", 3
    gate = script.hold("inspect_container")
    event(arbiter, "die", held)
    await wait_until(lambda: "inspect_container" in script.calls, 5)
    assert arbiter.end_of(held.id) is None
    gate.set()
    await quiet(arbiter)
    assert arbiter.end_of(held.id).code is EndCode.FAILED


async def test_a_server_that_dies_in_its_start_call_is_read_when_the_call_is_over(arbiter, script):
    held = arbiter.reserve(claim(), image="sha256:0")
    made = await arbiter.create(held.id, name="n")
    gate = script.hold("start")
    starting = asyncio.create_task(arbiter.start(held.id, made["Id"]))
    await wait_until(lambda: "start" in script.calls, 5)
    event(arbiter, "start", held)
    event(arbiter, "die", held)
    script.exit_code = 3
    gate.set()
    await starting
    script.rows[0]["State"] = "exited"
    await quiet(arbiter)
    assert arbiter.end_of(held.id).code is EndCode.FAILED


async def test_whoever_waits_is_told_of_a_container_that_only_a_listing_misses(arbiter, script):
    held = await running(arbiter)
    told = asyncio.Event()
    arbiter.tell(held.id, told.set)
    script.rows.clear()
    await arbiter.engine.refresh()
    await asyncio.wait_for(told.wait(), 5)
    assert arbiter.end_of(held.id).code is EndCode.GONE


async def test_a_clearing_waits_for_every_step_of_its_lease(arbiter, script):
    held = arbiter.reserve(claim(), image="sha256:0")
    gate = script.hold("create_container")
    waiting = asyncio.create_task(arbiter.create(held.id, name="n"))
    await wait_until(lambda: script.calls, 5)
    waiting.cancel()
    await arbiter.endings.steps.run(held.id, asyncio.sleep(0))  # a second step of the lease comes and goes
    arbiter.abandon(held.id)
    await asyncio.sleep(0.05)
    assert arbiter.holds(held.id), "the create is still under way"
    gate.set()
    await quiet(arbiter)
    assert script.rows == []
    assert not arbiter.holds(held.id)


async def test_no_step_begins_behind_a_clearing(arbiter):
    held = arbiter.reserve(claim(), image="sha256:0")
    arbiter.abandon(held.id)
    with pytest.raises(RuntimeError, match="given up"):
        await arbiter.create(held.id, name="n")


async def test_the_gpu_of_a_create_without_an_answer_stays_until_its_container_can_come_no_more(
    arbiter, script, monkeypatch
):
    monkeypatch.setattr("spawner.endings.LATE_CREATE_S", 0.5)
    held = arbiter.reserve(claim(), image="sha256:0")
    script.trouble["create_container"] = EngineSilent("no answer")
    with pytest.raises(EngineSilent):
        await arbiter.create(held.id, name="n")
    arbiter.abandon(held.id)
    await asyncio.sleep(0.1)
    assert arbiter.holds(held.id)
    script.rows.append({"Id": "c1", "Names": ["/n"], "State": "created", "Labels": to_labels(held)})
    await quiet(arbiter)
    assert script.rows == []
    assert not arbiter.holds(held.id)


async def test_a_stop_that_fails_quarantines_the_lease_until_the_container_is_gone(arbiter, script):
    held = await running(arbiter)
    script.trouble |= {"stop": EngineSilent("no answer"), "remove_container": EngineFails("did not receive an exit")}
    with pytest.raises(EngineSilent):
        await arbiter.stop(held.id, "c1")
    assert set(arbiter.quarantined()) == {held.id}
    assert arbiter.find("ann", "") is None
    assert held in arbiter.ledger().leases
    with pytest.raises(Refused) as refused:
        arbiter.reserve(claim(), image="sha256:0")
    assert refused.value.refusal.code is Code.GPU_ENTITLEMENT
    await asyncio.wait_for(arbiter.retire("ann", ""), 1)
    arbiter.reserve(claim(gpus=0), image="sha256:0")
    del script.trouble["remove_container"]
    await quiet(arbiter)
    assert arbiter.quarantined() == {}
    assert held not in arbiter.ledger().leases


async def test_a_new_start_waits_for_what_is_left_only_so_long(arbiter, script, monkeypatch):
    monkeypatch.setattr("spawner.arbiter.RETIRE_LIMIT_S", 0.1)
    await running(arbiter)
    script.hold("stop")
    await asyncio.wait_for(arbiter.retire("ann", ""), 2)
    assert script.rows, "it is still being stopped"


async def test_a_removal_that_somebody_else_has_begun_is_waited_for(arbiter, script):
    await running(arbiter)
    script.trouble["remove_container"] = EngineRefuses("409: removal is already in progress")
    retiring = asyncio.create_task(arbiter.retire("ann", ""))
    await wait_until(lambda: "remove_container" in script.calls, 5)
    await asyncio.sleep(0.05)
    assert not retiring.done()
    script.rows.clear()
    await asyncio.wait_for(retiring, 5)


async def test_a_lease_that_is_cleared_is_no_longer_held_although_no_event_has_come(arbiter, script):
    held = await running(arbiter)
    script.rows.clear()
    arbiter.abandon(held.id)
    await quiet(arbiter)
    assert arbiter.ledger().leases == ()
    assert arbiter.end_of(held.id).code is EndCode.GONE


async def test_a_removal_that_the_engine_does_not_confirm_is_seen_to(arbiter, script):
    held = await running(arbiter)
    script.trouble["remove_container"] = EngineRefuses("409: removal is already in progress")
    await arbiter.remove(held.id, "c1")
    assert arbiter.holds(held.id)
    del script.trouble["remove_container"]
    await quiet(arbiter)
    assert not arbiter.holds(held.id)


async def test_a_lease_past_its_end_that_does_not_stop_is_removed_and_says_why(arbiter, script):
    held = await running(arbiter)
    arbiter.clock = lambda: held.expires + timedelta(seconds=1)
    script.trouble["stop"] = EngineSilent("no answer")
    arbiter.reap()
    await quiet(arbiter)
    assert script.rows == []
    assert arbiter.end_of(held.id).code is EndCode.EXPIRED


async def test_what_the_last_hub_could_not_end_is_ended_once_its_server_runs_anew(arbiter):
    old = lease(1, "GPU-00000001", user="ann")
    new = lease(2, "GPU-00000002", user="ann")
    ahead = datetime.now(UTC)
    for number, item in enumerate((old, new)):
        labels = to_labels(item) | {
            LABEL + "granted": (ahead + timedelta(minutes=number)).isoformat(),
            LABEL + "expires": (ahead + timedelta(days=1)).isoformat(),
        }
        arbiter.engine.cache.put(Container(id=f"c{number}", name="n", state="running", labels=labels))
    assert arbiter.find("ann", "").id == "c1"
    arbiter.reap()
    assert arbiter.endings.leaves(old.id)
    assert not arbiter.endings.leaves(new.id)


async def test_a_paused_server_is_found(arbiter):
    held = await running(arbiter)
    event(arbiter, "pause", held)
    assert arbiter.find("ann", "").id == "c1"
    assert arbiter.end_of(held.id) is None
