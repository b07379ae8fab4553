"""The figures: what they count, that nobody is named in them, and that a scrape never fails or waits."""

import asyncio
import re
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests
from docker.errors import APIError, DockerException, NotFound
from prometheus_client import CollectorRegistry, Metric, generate_latest

from spawner import metrics, runtime
from spawner.arbiter import Refused
from spawner.core.ledger import LABEL, Container, to_labels
from spawner.core.model import Code, Lease, Mode, Refusal
from spawner.core.shares import Notice, NoticeCode
from spawner.docker_api import Engine, EngineSilent
from spawner.metrics import HubCollector, States, timed
from spawner.runtime import Runtime
from tests.core.strategies import gpu, lease, node
from tests.test_runtime import shared  # noqa: F401 - a fixture

ONE, SPLIT = gpu(1), gpu(4, slices=2)
LEFT, RIGHT = SPLIT.mig
HERE = node(ONE, SPLIT)


def families(current: Runtime | None) -> list[Metric]:
    """What a scrape gives."""
    return list(HubCollector(lambda: current).collect())


def value(current: Runtime, name: str, **labels: str) -> float | None:
    """One figure, as Prometheus gets it."""
    registry = CollectorRegistry()
    registry.register(HubCollector(lambda: current))
    return registry.get_sample_value(name, labels)


def run(current: Runtime, held: Lease, container: str) -> None:
    current.engine.cache.put(Container(id=container, name="n", state="running", labels=to_labels(held)))


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "closed", "withheld", "state"),
    [
        pytest.param((), (), (), "free", id="free"),
        pytest.param((lease(1, ONE.uuid),), (), (), "leased", id="leased"),
        pytest.param((lease(1, ONE.uuid, mode=Mode.SHARED),), (), (), "shared", id="shared"),
        pytest.param((lease(1, ONE.uuid),), (ONE.uuid,), (ONE.uuid,), "leased", id="cordoned-while-in-use"),
        pytest.param((), (ONE.uuid,), (ONE.uuid,), "closed", id="closed"),
        pytest.param((), (HERE.name,), (), "closed", id="whole-node-closed"),
        pytest.param((), (), (ONE.uuid,), "quarantined", id="withheld"),
    ],
)
def test_a_gpu_is_in_the_first_state_that_fits(held, closed, withheld, state):
    assert States(held, closed=closed, withheld=withheld).of_gpu(HERE, ONE) == state


def test_an_unhealthy_gpu_is_unhealthy_whoever_holds_it():
    broken = gpu(1, unhealthy="lost")
    assert States([lease(1, broken.uuid)], closed=(), withheld=()).of_gpu(HERE, broken) == "unhealthy"


def test_a_split_gpu_is_split_and_its_instances_have_states_of_their_own():
    states = States([lease(1, LEFT.uuid, mode=Mode.MIG)], closed=(), withheld=())
    assert states.of_gpu(HERE, SPLIT) == "split"
    assert [states.of_instance(HERE, SPLIT, part) for part in SPLIT.mig] == ["leased", "free"]
    closed = States((), closed={SPLIT.uuid}, withheld={RIGHT.uuid})
    assert closed.of_instance(HERE, SPLIT, RIGHT) == "closed"


# -- the scrape --------------------------------------------------------------------------------------------------------


def test_before_the_runtime_has_begun_there_are_no_figures():
    assert families(None) == []


def test_a_fault_of_ours_costs_the_figures_and_not_the_scrape(caplog):
    registry = CollectorRegistry()
    registry.register(HubCollector(SimpleNamespace))  # type: ignore[arg-type] # it has nothing
    assert generate_latest(registry) == b""
    assert "the figures cannot be read" in caplog.text


def test_a_runtime_that_could_not_begin_gives_none(monkeypatch):
    async def cancelled() -> Any:
        task = asyncio.ensure_future(asyncio.sleep(10))
        task.cancel()
        await asyncio.wait([task])
        return task

    monkeypatch.setattr(runtime, "_runtime", asyncio.run(cancelled()))
    assert list(HubCollector().collect()) == []


async def test_gpus_and_leases_are_counted_as_they_are_now(shared):  # noqa: F811
    await shared.watch.read()
    first, second, third, split = shared.node.gpus
    run(shared, lease(1, first.uuid, hub="gpucampus"), "c1")
    run(shared, lease(2, split.mig[0].uuid, hub="gpucampus", mode=Mode.MIG), "c2")
    run(shared, lease(3, second.uuid, hub="another"), "c3")
    unreadable = to_labels(lease(4, third.uuid)) | {LABEL + "schema": "99"}
    shared.engine.cache.put(Container(id="c4", name="n", state="running", labels=unreadable))
    here = {"node": shared.node.name, "model": first.name}
    states = {state: value(shared, "gpucampus_gpus", **here, state=state) for state in metrics.STATES}
    assert states == dict.fromkeys(metrics.STATES, 0) | {"leased": 2, "split": 1}
    assert value(shared, "gpucampus_gpus", node=shared.node.name, model=third.name, state="quarantined") == 1
    parts = here | {"profile": split.mig[0].profile}
    assert value(shared, "gpucampus_mig_instances", **parts, state="leased") == 1
    assert value(shared, "gpucampus_mig_instances", **parts, state="free") == len(split.mig) - 1
    for state in ("split", "shared"):  # which an instance never is
        assert value(shared, "gpucampus_mig_instances", **parts, state=state) is None
    modes = {mode.value: value(shared, "gpucampus_leases", mode=mode.value) for mode in Mode}
    assert modes == {"exclusive": 1, "mig": 1, "shared": 0, "none": 0}, "another hub's are not ours"
    assert value(shared, "gpucampus_orphans") == 1
    assert value(shared, "gpucampus_engine_answers") == 0
    shared.engine.cache.fresh = True
    assert value(shared, "gpucampus_engine_answers") == 1


def fill(current: Runtime) -> None:
    held = lease(1, "GPU-a", user="ann")
    current.refused("ann", "train", Refusal.of(Code.GPUS_LEASED))
    told = Notice(lease=held.id, code=NoticeCode.SHARE_ENDED, at=held.granted)
    current._noticed(held, told, "GPU-a")
    current.figures.called("stop", "done", 0.2)
    current.figures.started("ready", 3)


async def test_refusals_and_notices_are_counted_and_stand_in_the_audit_file_too(shared):  # noqa: F811
    fill(shared)
    fill(shared)
    assert value(shared, "gpucampus_refusals_total", code="gpus-leased") == 2
    assert value(shared, "gpucampus_share_notices_total", code="gpu-share-ended") == 2
    audit = (shared.settings.state / "log" / "audit.jsonl").read_text(encoding="utf-8")
    assert (audit.count('"refused"'), audit.count('"share-notice"')) == (2, 2)


async def test_names_follow_prometheus_and_no_label_can_name_a_person_or_a_server(shared):  # noqa: F811
    await shared.watch.read()
    run(shared, lease(1, shared.node.gpus[0].uuid, user="ann", hub="gpucampus"), "c1" * 32)
    fill(shared)
    found = families(shared)
    assert len(found) > 8
    for family in found:
        assert re.fullmatch(r"gpucampus_[a-z_]+[a-z]", family.name)
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge", "histogram")
        if family.type == "histogram":
            assert family.name.endswith("_seconds"), "the base unit is in the name"
        totals = [sample for sample in family.samples if sample.name.endswith("_total")]
        assert bool(totals) == (family.type == "counter")
        for sample in family.samples:
            assert sample.labels.keys() <= {
                "node",
                "model",
                "profile",
                "state",
                "mode",
                "code",
                "method",
                "outcome",
                "le",
            }
    registry = CollectorRegistry()
    registry.register(HubCollector(lambda: shared))
    text = generate_latest(registry).decode()
    assert not re.search(r"ann\b|lease-1|c1c1|GPU-", text)


# -- what is timed -----------------------------------------------------------------------------------------------------


def answer(status: int) -> requests.Response:
    made = requests.Response()
    made.status_code = status
    return made


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        pytest.param(None, "done", id="done"),
        pytest.param(NotFound("no such container", response=answer(404)), "gone", id="404"),
        pytest.param(APIError("conflict", response=answer(409)), "refused", id="409"),
        pytest.param(APIError("trouble", response=answer(500)), "failed", id="500"),
        pytest.param(requests.ReadTimeout("read timed out"), "silent", id="no-answer"),
        pytest.param(DockerException("ConnectionRefusedError"), "unreachable", id="no-engine"),
        pytest.param(ValueError("a fault of ours"), "given-up", id="fault"),
    ],
)
async def test_each_engine_call_is_noted_with_what_came_of_it(error, outcome):
    noted: list[tuple[str, str, float]] = []
    engine = Engine(called=lambda *call: noted.append(call))

    def stop(_container: str) -> None:
        if error is not None:
            raise error

    engine._client = cast("Any", SimpleNamespace(stop=stop))
    if error is None:
        await engine.call("stop", "c1")
    else:
        with pytest.raises(Exception):  # noqa: B017 - which one is for test_docker_api
            await engine.call("stop", "c1")
    engine.close()
    ((method, came, seconds),) = noted
    assert (method, came) == ("stop", outcome)
    assert 0 <= seconds < 5


async def test_an_engine_call_without_an_answer_in_time_is_noted_as_silent():
    noted: list[str] = []
    engine = Engine(called=lambda _method, outcome, _seconds: noted.append(outcome))
    engine._client = cast("Any", SimpleNamespace(stop=lambda: time.sleep(0.5)))
    with pytest.raises(EngineSilent):
        await engine.call("stop", limit_s=0.05)
    assert noted == ["silent"]
    engine.close()


@pytest.mark.parametrize(
    ("error", "cause", "outcome"),
    [
        pytest.param(None, None, "ready", id="ready"),
        pytest.param(RuntimeError("said"), Refused(Refusal.of(Code.GPUS_LEASED)), "refused", id="refused"),
        pytest.param(RuntimeError("said"), OSError("engine"), "failed", id="failed"),
        pytest.param(RuntimeError("a fault"), None, "failed", id="fault"),
        pytest.param(asyncio.CancelledError(), None, "cancelled", id="stop-pressed"),
    ],
)
async def test_each_start_is_noted_with_what_came_of_it(shared, monkeypatch, error, cause, outcome):  # noqa: F811
    monkeypatch.setattr(runtime, "current_or_none", lambda: shared)

    @timed
    async def start(_spawner: object) -> str:
        if error is not None:
            raise error from cause
        return "up"

    if error is None:
        assert await start(None) == "up"
    else:
        with pytest.raises(type(error)):
            await start(None)
    assert value(shared, "gpucampus_start_duration_seconds_count", outcome=outcome) == 1
