"""The arbiter on a real engine: what is leased stays leased, what nobody owns goes, whatever breaks in between."""

import asyncio
import io
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from spawner.arbiter import Arbiter, Refused
from spawner.core.exits import EndCode
from spawner.core.ledger import LABEL
from spawner.core.model import Code, Lease, Node
from spawner.docker_api import Engine, EngineFails, EngineUnknown, device_request
from spawner.refusals import refusal_for, said
from tests.core.strategies import claim, gpu, node
from tests.rig.engine import PrivateEngine
from tests.rig.fault_proxy import Fault, FaultProxy
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.docker

SLEEP = ["sleep", "300"]
GPUS = node(gpu(1), gpu(2))
NUMBERS = itertools.count(1)  # over all tests: the engine still tells of the last one's leases


class World:
    """An engine behind a proxy that can fail, and as many hub processes as a test wants."""

    def __init__(self, engine: PrivateEngine, proxy: FaultProxy, image: str) -> None:
        self.engine = engine
        self.proxy = proxy
        self.image = image
        self.now = datetime.now(UTC)
        self._arbiters: list[Arbiter] = []

    async def hub(self, *, name: str = "campus", nodes: tuple[Node, ...] = (GPUS,)) -> Arbiter:
        """Start a hub process: an arbiter that has rebuilt its ledger."""
        arbiter = Arbiter(
            Engine(limit_s=5),
            hub=name,
            nodes=lambda: nodes,
            clock=lambda: self.now,
            new_id=lambda: f"{name}-{next(NUMBERS)}",
        )
        self._arbiters.append(arbiter)
        assert await arbiter.begin(30)
        return arbiter

    async def kill(self, arbiter: Arbiter) -> None:
        """End a hub process as kill -9 does: nothing is tidied."""
        await arbiter.close()
        self._arbiters.remove(arbiter)

    async def started(
        self, arbiter: Arbiter, user: str, command: list[str] = SLEEP, gpus: int = 1, **options: Any
    ) -> tuple[Lease, str]:
        """Run a server for a user; its lease and its container."""
        lease = arbiter.reserve(claim(user=user, gpus=gpus), image=self.image)
        host = await asyncio.to_thread(arbiter.engine.host_config, init=True, **options)
        made = await arbiter.create(lease.id, image=self.image, command=command, host_config=host)
        await arbiter.start(lease.id, made["Id"])
        return lease, made["Id"]

    def containers(self) -> list[Any]:
        """What is really on the engine."""
        return self.engine.client.containers.list(all=True, ignore_removed=True)  # some go while they are listed

    async def close(self) -> None:
        for arbiter in self._arbiters:
            await arbiter.close()
        for container in self.containers():
            container.remove(force=True)


@pytest_asyncio.fixture
async def world(engine: PrivateEngine, probe_image: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with FaultProxy(engine.url) as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        made = World(engine, proxy, probe_image)
        try:
            yield made
        finally:
            proxy.set(Fault.NONE)
            await made.close()


async def test_a_killed_hub_loses_no_lease_and_gives_no_gpu_twice(world):
    first = await world.hub()
    ann, _ = await world.started(first, "ann")
    bob, _ = await world.started(first, "bob")
    assert {*ann.gpus, *bob.gpus} == {"GPU-00000001", "GPU-00000002"}
    await world.kill(first)
    second = await world.hub()
    assert second.ledger().leases == tuple(sorted((ann, bob), key=lambda lease: lease.id))
    with pytest.raises(Refused) as refused:
        second.reserve(claim(user="cem"), image=world.image)
    assert dict(refused.value.refusal.params)["leased"] == 2
    assert len(world.containers()) == 2


async def test_another_hubs_leases_count_and_are_never_touched(world):
    other = await world.hub(name="other")
    await world.started(other, "ann")
    left = other.reserve(claim(user="bob"), image=world.image)
    host = await asyncio.to_thread(other.engine.host_config)
    await other.create(left.id, image=world.image, command=SLEEP, host_config=host)
    await world.kill(other)
    ours = await world.hub()
    with pytest.raises(Refused):
        ours.reserve(claim(user="cem"), image=world.image)
    ours.reap()
    assert not ours.endings.chores
    assert len(world.containers()) == 2, "the other hub's created container is not ours to remove"


async def test_a_cancelled_create_leaves_neither_container_nor_lease(world):
    arbiter = await world.hub()
    lease = arbiter.reserve(claim(), image=world.image)
    host = await asyncio.to_thread(arbiter.engine.host_config)
    waiting = asyncio.create_task(arbiter.create(lease.id, image=world.image, command=SLEEP, host_config=host))
    await asyncio.sleep(0)  # the engine call is under way
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    arbiter.abandon(lease.id)
    assert arbiter.ledger().leases, "the GPU stays reserved until the container is known to be gone"
    await wait_until(lambda: not arbiter.ledger().leases, 30)
    assert world.containers() == []


async def test_a_start_that_fails_leaves_nothing(world):
    arbiter = await world.hub()
    lease = arbiter.reserve(claim(), image=world.image)
    host = await asyncio.to_thread(arbiter.engine.host_config)
    made = await arbiter.create(lease.id, image=world.image, command=["/no/such/program"], host_config=host)
    with pytest.raises(Exception, match="no such file"):
        await arbiter.start(lease.id, made["Id"])
    arbiter.abandon(lease.id)
    await wait_until(lambda: not arbiter.ledger().leases, 30)
    assert world.containers() == []


GONE = "GPU-00000000-0000-0000-0000-000000000000"
HOOK_SAYS = "error running hook #0: stderr: nvidia-container-cli: "


@pytest.mark.parametrize(
    ("devices", "words", "code"),
    [
        pytest.param(
            {"device_requests": [device_request("nvidia", (GONE,), [["gpu"]])]}, "", Code.GPU_GONE, id="unknown-gpu"
        ),
        pytest.param({"devices": ["/no/such/nvidia9:/dev/nvidia9:rw"]}, "", Code.GPU_GONE, id="missing-node"),
        pytest.param(
            {"device_requests": [device_request("cdi", (f"nvidia.com/gpu={GONE}",), [])]},
            "",
            Code.GPU_RUNTIME_MISSING,
            id="no-cdi",
        ),
        pytest.param(
            {},
            HOOK_SAYS + "initialization error: nvml error: driver/library version mismatch",
            Code.GPU_DRIVER_MISMATCH,
            id="driver-updated",
        ),
    ],
)
async def test_a_gpu_that_cannot_be_handed_over_leaves_nothing_and_is_said_in_plain_words(world, devices, words, code):
    arbiter = await world.hub()
    for _ in range(2):
        lease = arbiter.reserve(claim(), image=world.image)
        host = await asyncio.to_thread(arbiter.engine.host_config, **devices)
        made = await arbiter.create(lease.id, image=world.image, command=SLEEP, host_config=host)
        if words:
            world.proxy.words = words
            world.proxy.set(Fault.ERROR, lambda line: "/start" in line)
        with pytest.raises(EngineFails) as failed:
            await arbiter.start(lease.id, made["Id"])
        arbiter.abandon(lease.id)
        world.proxy.set(Fault.NONE)
        told = said(refusal_for(failed.value), "en")
        assert told.reason == code.value
        assert "hook" not in str(told)
        await wait_until(lambda: not arbiter.ledger().leases, 30)
        assert world.containers() == []
    await world.started(arbiter, "ann", gpus=0)


async def test_a_container_that_was_never_started_is_reaped_after_a_crash(world):
    first = await world.hub()
    lease = first.reserve(claim(), image=world.image)
    host = await asyncio.to_thread(first.engine.host_config)
    await first.create(lease.id, image=world.image, command=SLEEP, host_config=host)
    await world.kill(first)
    second = await world.hub()
    await wait_until(lambda: world.containers() == [], 30)
    await wait_until(lambda: not second.ledger().leases, 30)


async def test_a_death_is_known_within_a_second_with_its_reason(world):
    arbiter = await world.hub()
    eat = ["python3", "-c", "b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"]
    told = asyncio.Event()
    lease = arbiter.reserve(claim(), image=world.image)
    arbiter.tell(lease.id, told.set)
    limits = {"mem_limit": 64 << 20, "memswap_limit": 64 << 20}
    host = await asyncio.to_thread(arbiter.engine.host_config, **limits)
    made = await arbiter.create(lease.id, image=world.image, command=eat, host_config=host)
    await arbiter.start(lease.id, made["Id"])
    world.engine.client.api.wait(made["Id"])
    await asyncio.wait_for(told.wait(), 5)
    end = arbiter.end_of(lease.id)
    assert end is not None
    assert end.code is EndCode.OUT_OF_MEMORY
    assert dict(end.params) == {"memory": 64 << 20}
    assert not arbiter.ledger().leases
    assert world.containers() == []


async def test_a_container_removed_behind_our_back_frees_its_gpu(world):
    arbiter = await world.hub()
    lease, container = await world.started(arbiter, "ann")
    world.engine.client.api.remove_container(container, force=True)
    await wait_until(lambda: not arbiter.ledger().leases, 10)
    assert arbiter.end_of(lease.id) is not None
    arbiter.reserve(claim(user="bob"), image=world.image)


async def test_what_the_event_stream_missed_is_found_by_the_listing(world):
    arbiter = await world.hub()
    lease, container = await world.started(arbiter, "ann")
    world.proxy.set(Fault.REFUSE, lambda line: "/events" in line)
    world.engine.client.api.remove_container(container, force=True)

    async def found_out() -> bool:
        """List; a call on a connection that was cut fails, and the next one does not."""
        await arbiter.engine.refresh()
        return not arbiter.ledger().leases

    await wait_until(found_out, 10)  # type: ignore[arg-type] # mypy cannot tell T from Awaitable[T]
    assert arbiter.end_of(lease.id) is not None


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.HANG, Fault.REFUSE], ids=lambda fault: fault.name.lower())
async def test_an_engine_that_does_not_answer_keeps_every_lease(world, fault):
    arbiter = await world.hub()
    lease, container = await world.started(arbiter, "ann")
    world.proxy.set(fault)
    await arbiter.engine.refresh()
    assert not arbiter.engine.cache.fresh
    assert arbiter.end_of(lease.id) is None, "unknown is not gone"
    with pytest.raises(Refused) as refused:
        arbiter.reserve(claim(user="bob"), image=world.image)
    assert refused.value.refusal.code is Code.ENGINE_UNKNOWN
    world.proxy.set(Fault.NONE)
    await arbiter.engine.refresh()
    assert [item.id for item in arbiter.ledger().leases] == [lease.id]
    assert arbiter.engine.cache.get(container).state == "running"


async def test_a_removal_that_the_engine_does_not_confirm_keeps_the_gpu(world):
    arbiter = await world.hub()
    lease, _ = await world.started(arbiter, "ann")
    world.proxy.set(Fault.ERROR, lambda line: line.startswith("DELETE"))
    arbiter.abandon(lease.id)
    await wait_until(lambda: arbiter.endings.chores, 5)
    assert [item.id for item in arbiter.ledger().leases] == [lease.id]
    world.proxy.set(Fault.NONE)
    await wait_until(lambda: not arbiter.ledger().leases, 30)
    assert world.containers() == []


async def test_a_stop_that_hangs_ends_in_time_and_holds_nobody_else_up(world, monkeypatch):
    monkeypatch.setattr("spawner.endings.STOP_MARGIN_S", 2)
    arbiter = await world.hub(nodes=(node(gpu(1), gpu(2)),))
    lease, container = await world.started(arbiter, "ann")
    world.proxy.set(Fault.HANG, lambda line: "/stop" in line)
    stopping = asyncio.create_task(arbiter.stop(lease.id, container, 1))
    await world.started(arbiter, "bob")
    with pytest.raises(EngineUnknown):
        await stopping
    assert lease.id in {item.id for item in arbiter.ledger().leases}


async def test_a_lease_past_its_end_is_stopped(world):
    arbiter = await world.hub()
    lease, _ = await world.started(arbiter, "ann", ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"])
    world.now = lease.expires + timedelta(seconds=1)
    arbiter.reap()
    await wait_until(lambda: not arbiter.ledger().leases, 30)
    assert arbiter.end_of(lease.id).code is EndCode.EXPIRED


async def test_labels_of_an_image_are_not_believed(world, engine):
    forged = io.BytesIO(f"FROM {world.image}\nLABEL {LABEL}user=admin {LABEL}gpus=GPU-00000002\n".encode())
    built, _ = engine.client.images.build(fileobj=forged, rm=True)
    arbiter = await world.hub()
    lease = arbiter.reserve(claim(), image=built.id)
    host = await asyncio.to_thread(arbiter.engine.host_config)
    made = await arbiter.create(lease.id, image=built.id, command=SLEEP, host_config=host)
    labels = engine.client.api.inspect_container(made["Id"])["Config"]["Labels"]
    assert labels[LABEL + "user"] == "ann"
    assert labels[LABEL + "gpus"] == "GPU-00000001"
    arbiter.abandon(lease.id)
    await wait_until(lambda: world.containers() == [], 30)


async def test_an_earlier_life_of_a_server_is_retired(world):
    first = await world.hub()
    lease, _ = await world.started(first, "ann")
    await world.kill(first)
    second = await world.hub()
    await second.retire("ann", "")
    assert world.containers() == []
    assert not second.ledger().leases
    assert second.find("ann", "") is None
    assert lease.gpus == second.reserve(claim(), image=world.image).gpus
