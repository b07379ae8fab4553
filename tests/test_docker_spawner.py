"""What the spawner makes of an engine in trouble, and of the servers that a restarted hub finds."""

import asyncio
import tomllib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dockerspawner import DockerSpawner
from jupyterhub.spawner import SpawnException

from spawner import runtime
from spawner.arbiter import Refused
from spawner.core import catalog as catalogs
from spawner.core.exits import End
from spawner.core.health import HealthCode
from spawner.core.model import Code, Person, Refusal
from spawner.docker_api import EngineFails, EngineRefuses, EngineSaysGone, EngineUnknown
from spawner.docker_spawner import GPUDockerSpawner
from spawner.refusals import refusal_for, said
from spawner.settings import Settings, load
from tests.core.strategies import claim
from tests.rig.waiting import wait_until
from tests.test_settings import EXAMPLE, LEAST


@pytest.mark.parametrize("error", [EngineUnknown("no answer"), EngineRefuses("409")], ids=["unknown", "refused"])
async def test_a_stop_that_the_engine_does_not_finish_ends_for_its_person_and_is_left_to_the_arbiter(
    monkeypatch, error
):
    abandoned: list[str] = []
    arbiter = SimpleNamespace(holds=lambda _lease: True, abandon=abandoned.append)
    monkeypatch.setattr(runtime, "current_or_none", lambda: SimpleNamespace(arbiter=arbiter))

    async def stop(_spawner, now=False):
        raise error

    monkeypatch.setattr(DockerSpawner, "stop", stop)
    spawner = GPUDockerSpawner(
        user=SimpleNamespace(name="ann"), orm_spawner=SimpleNamespace(name="", user_options={}, server=None)
    )
    spawner.object_id, spawner.lease_id = "c1", "lease-1"
    await spawner.stop()
    assert abandoned == ["lease-1"]
    assert (spawner.object_id, spawner.lease_id) == ("", "")


@pytest.mark.parametrize(
    ("blocked", "full", "status"),
    [
        pytest.param(Refusal.of(Code.HUB_BLOCKED, firewall="ufw", port=8081), None, 503, id="no-way-to-the-hub"),
        pytest.param(None, Refusal.of(Code.DISK_FULL, disk="homes", percent=96, most=95), 507, id="disk-full"),
    ],
)
async def test_no_start_is_accepted_while_servers_cannot_reach_the_hub_or_a_disk_is_full(
    monkeypatch, blocked, full, status
):
    told: list[Refusal] = []
    settings = load(EXAMPLE)

    async def image_of(_variant):
        return "sha256:1"

    async def refusal():
        return blocked

    shared = SimpleNamespace(
        settings=settings,
        roles=settings.entitlement_roles(),
        catalog=catalogs.parse(settings.catalog.read_text(encoding="utf-8")),
        image_of=image_of,
        network=SimpleNamespace(refusal=refusal),
        disks=SimpleNamespace(refusal=lambda: full),
        refused=lambda _user, _server, refusal: told.append(refusal),
    )

    async def get():
        return shared

    monkeypatch.setattr(runtime, "get", get)
    user = SimpleNamespace(
        name="ann", groups=[SimpleNamespace(name="students")], db=SimpleNamespace(commit=lambda: None)
    )
    spawner = GPUDockerSpawner(user=user, orm_spawner=SimpleNamespace(name="", user_options={}, server=None))
    with pytest.raises(SpawnException) as refused:
        await spawner.choose({"variant": "cpu"})
    expected = blocked or full
    assert (refused.value.status_code, refused.value.reason) == (status, expected.code.value)
    assert told == [expected]


@pytest.mark.parametrize(
    ("words", "doubted"),
    [
        pytest.param("device error: GPU-b: unknown device", [("GPU-b",)], id="unknown-device"),
        pytest.param("no space left on device", [], id="another-reason"),
    ],
)
async def test_the_gpus_of_a_start_that_did_not_find_them_are_doubted(monkeypatch, words, doubted):
    found: list[tuple[str, ...]] = []

    async def give(*_args):
        return Person(sub="s", uid=200_000, hub_name="ann", home="200000")

    shared = SimpleNamespace(
        person=give,
        storage=SimpleNamespace(ensure_home=give),
        arbiter=SimpleNamespace(abandon=lambda _lease: None),
        watch=SimpleNamespace(doubt=found.append),
        refused=lambda *_args: None,
        settings=Settings.model_validate(tomllib.loads(LEAST)),
    )

    async def get():
        return shared

    async def start(spawner):
        spawner.lease_id, spawner._gpus = "lease-1", ("GPU-b",)
        raise EngineFails(words)

    monkeypatch.setattr(runtime, "get", get)
    monkeypatch.setattr(DockerSpawner, "start", start)
    spawner = GPUDockerSpawner(
        user=SimpleNamespace(name="ann"), orm_spawner=SimpleNamespace(name="", user_options={}, server=None)
    )
    spawner._claim = claim()
    with pytest.raises(SpawnException):
        await spawner.start()
    assert found == doubted


@pytest.mark.parametrize(
    ("code", "doubted"),
    [
        pytest.param(HealthCode.GPU_MISSING, [("GPU-b",)], id="missing"),
        pytest.param(HealthCode.DRIVER_SILENT, [("GPU-b",)], id="silent"),
        pytest.param(HealthCode.VERSION, [], id="a-fault-of-the-image"),
    ],
)
async def test_what_the_check_in_the_container_found_is_said_and_missing_gpus_are_looked_at(monkeypatch, code, doubted):
    found: list[tuple[str, ...]] = []
    end = End(code=code, params=(("missing", 1), ("leased", 2), ("gpus", "GPU-b"), ("part", "CUDA")))
    shared = SimpleNamespace(
        arbiter=SimpleNamespace(end_of=lambda _lease: end),
        watch=SimpleNamespace(doubt=found.append),
        settings=Settings.model_validate(tomllib.loads(LEAST)),
    )
    spawner = GPUDockerSpawner(
        user=SimpleNamespace(name="ann"), orm_spawner=SimpleNamespace(name="", user_options={}, server=None)
    )
    spawner.lease_id, spawner._gpus = "lease-1", ("GPU-b",)
    with pytest.raises(SpawnException) as died:
        await spawner._wait_for_answer(cast("Any", shared), "")
    assert died.value.reason == code.value
    assert "was not started" in died.value.jupyterhub_message
    assert found == doubted


async def test_a_server_that_is_gone_before_its_address_is_asked_for_has_none(monkeypatch):
    async def address(_container, _network):
        raise EngineSaysGone("no such container")

    async def get():
        return SimpleNamespace(
            engine=SimpleNamespace(address=address), settings=SimpleNamespace(network=SimpleNamespace(name="n"))
        )

    monkeypatch.setattr(runtime, "get", get)
    spawner = GPUDockerSpawner(
        user=SimpleNamespace(name="ann"), orm_spawner=SimpleNamespace(name="", user_options={}, server=None)
    )
    assert await spawner.get_ip_and_port() == ("", 8888)


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        pytest.param(Refused(Refusal.of(Code.GPUS_LEASED)), Code.GPUS_LEASED, 409, id="refused"),
        pytest.param(
            EngineFails("nvml error: driver/library version mismatch"), Code.GPU_DRIVER_MISMATCH, 503, id="500"
        ),
        pytest.param(EngineRefuses("no such image"), Code.ENGINE_REFUSED, 400, id="400"),
        pytest.param(EngineSaysGone("no such container"), Code.ENGINE_REFUSED, 400, id="removed-meanwhile"),
        pytest.param(EngineUnknown("no answer"), Code.ENGINE_UNKNOWN, 503, id="no-answer"),
    ],
)
def test_a_start_that_failed_is_said_with_its_code(error, code, status):
    told = said(refusal_for(error), "en")
    assert (told.reason, told.status_code) == (code.value, status)
    assert told.jupyterhub_message, "the words reach people by this attribute"


@pytest.fixture
def found(monkeypatch):
    """A server as the hub finds it at its start: it runs, and answers while `answers` has something in it."""

    async def shared():
        return SimpleNamespace()

    async def poll(_spawner):
        return None

    async def answers(spawner, _address):
        return bool(spawner.answers)

    server = SimpleNamespace(ip="172.30.0.9", port=8888, host="http://172.30.0.9:8888", base_url="/user/ann/")
    monkeypatch.setattr(runtime, "get", shared)
    monkeypatch.setattr("spawner.docker_spawner.CHECK_STEP_S", 0.01)
    for name, value in {"poll": poll, "_answers": answers, "server": server}.items():
        monkeypatch.setattr(GPUDockerSpawner, name, value)
    spawner = GPUDockerSpawner(
        user=SimpleNamespace(name="ann"), orm_spawner=SimpleNamespace(name="", user_options={}, server=None)
    )
    spawner.load_state({"lease_id": "lease-1", "object_id": "c1"})
    spawner.answers, spawner._check_pending = [], True
    return spawner


async def test_after_a_restart_a_server_that_does_not_answer_is_kept_and_can_be_stopped(found, monkeypatch):
    checking = asyncio.create_task(found.get_url())
    await wait_until(lambda: not found.pending, 5, "the hub takes a Stop, which it does not while it is checking")
    found.clear_state()
    monkeypatch.setattr(GPUDockerSpawner, "server", None)
    found.answers.append("somebody else, under the same name")
    await asyncio.wait({checking}, timeout=0.1)
    assert not checking.done(), "at its end the check would stop what has the same name"
    checking.cancel()


async def test_after_a_restart_a_server_that_answers_late_goes_on_with_the_hubs_check(found):
    checking = asyncio.create_task(found.get_url())
    await wait_until(lambda: not found.pending, 5)
    found.answers.append("itself")
    assert await checking == "http://172.30.0.9:8888/user/ann/"
    assert found.pending == "check"


async def press_stop(spawner) -> None:
    """What JupyterHub does with a Stop, up to where it would answer 500."""
    if spawner.pending and spawner._spawn_future:
        spawner._spawn_future.cancel()
        await asyncio.sleep(0)
    if spawner.pending:
        raise RuntimeError(f"pending {spawner.pending}")
    spawner._stop_pending = True


@pytest.mark.parametrize("known", [True, False], ids=["address-known", "killed-in-its-start"])
async def test_a_stop_in_the_hubs_first_seconds_is_taken_while_the_engine_hangs(found, monkeypatch, known):
    if not known:
        monkeypatch.setattr(GPUDockerSpawner, "server", SimpleNamespace(ip="", port=8888, base_url="/user/ann/"))
    hangs = asyncio.Event()

    async def shared():
        await hangs.wait()
        return SimpleNamespace()

    monkeypatch.setattr(runtime, "get", shared)
    checking = asyncio.create_task(found.get_url())
    await wait_until(lambda: bool(found._spawn_future) or not found.pending, 5, "the check waits for the runtime")
    assert bool(found.pending) is not known, "without an address nobody is led to it"
    await press_stop(found)
    found.clear_state()
    hangs.set()
    await asyncio.wait({checking}, timeout=0.1)
    assert not checking.done(), "at its end the check would stop what has the same name"
    assert (found._check_pending, found._spawn_future) == (False, None)
    checking.cancel()


async def test_a_stop_of_a_server_whose_container_nobody_knows_is_remembered(found, monkeypatch):
    asked: list[tuple[str, str]] = []
    arbiter = SimpleNamespace(stop_when_known=lambda *names: asked.append(names))

    async def shared():
        return SimpleNamespace(arbiter=arbiter)

    monkeypatch.setattr(runtime, "get", shared)
    found.load_state({})
    await found.stop()
    assert asked == [("ann", "")]
    found.clear_state()
    await found.stop()
    assert asked == [("ann", "")], "a server that was never found at a hub's start has nothing to be remembered"


async def test_a_check_that_nobody_stops_goes_on_as_a_check(found, monkeypatch):
    monkeypatch.setattr(GPUDockerSpawner, "server", SimpleNamespace(ip="", port=8888, base_url="/user/ann/"))
    steps: list[str] = ["", "http://172.30.0.9:8888"]

    async def address(_spawner, _shared):
        return steps.pop(0)

    monkeypatch.setattr(GPUDockerSpawner, "_address", address)
    found.answers.append("itself")
    assert await found.get_url() == "http://172.30.0.9:8888/user/ann/"
    assert (found.pending, found._spawn_future) == ("check", None)
