"""The look at the GPUs while the hub runs; the driver is the stand-in library, the processes are real ones."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.demo.gpus.make import SimulatedGPUs
from spawner import nvml, watch
from spawner.arbiter import Arbiter, Refused
from spawner.core import health
from spawner.core.exits import Final, why_ended
from spawner.core.ledger import Container, from_labels, rebuild, to_labels
from spawner.core.model import Lease, Mode, PlacementRules
from spawner.core.shares import Notice, NoticeCode
from spawner.docker_api import Engine
from spawner.messages import notice
from spawner.state_cache import StateCache
from spawner.watch import Watch, end_process
from tests.core.strategies import claim, lease
from tests.rig.waiting import wait_until
from tests.test_nvml import add, edit, gpu_settings, lose, run_in

ANN, BOB = "a1" * 32, "b2" * 32


class Site:
    """A watch over simulated GPUs, an engine's cache without an engine, and a /proc of its own."""

    def __init__(self, gpus: SimulatedGPUs, proc: Path, **settings: object) -> None:
        self.gpus = gpus
        self.proc = proc
        self.cache = StateCache()
        self.noted: list[tuple[Lease, Notice, str]] = []
        self.settings = gpu_settings(gpus, **({"read_every": "1h"} | settings))
        self.watch = self.begin()

    def begin(self) -> Watch:
        """A hub's watch, as after a restart."""
        made = Watch(
            self.settings,
            node_name="node-1",
            containers=lambda: self.cache,
            held=self.held,
            shares_of=PlacementRules(
                shares_per_gpu=self.settings.shares_per_gpu, shares_by_gpu=tuple(self.settings.shares_by_gpu.items())
            ).shares_of,
            clock=lambda: datetime.now(UTC),
            noticed=lambda *told: self.noted.append(told),
            proc=self.proc,
        )
        self.cache.on_drop = made.freed
        return made

    def held(self) -> set[str]:
        return {uuid for container in self.cache for uuid in from_labels(container.labels).gpus}

    def uuid(self, key: str) -> str:
        return self.gpus.device(key).uuid

    def run(self, number: int, *keys: str, container: str = ANN, mode: Mode = Mode.EXCLUSIVE) -> Lease:
        made = lease(number, *map(self.uuid, keys), mode=mode)
        self.cache.put(Container(id=container, name="n", state="running", labels=to_labels(made)))
        return made


@pytest.fixture
def site(own_gpus, tmp_path) -> Site:
    return Site(own_gpus, tmp_path / "proc")


def without(gpus: SimulatedGPUs, *lines: str) -> None:
    def change(text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if line.strip() not in lines)

    edit(gpus, change)


# -- giving a GPU again ------------------------------------------------------------------------------------------------


async def test_a_gpu_is_withheld_from_its_server_s_end_until_the_next_look(site):
    await site.watch.read()
    site.run(1, "0")
    assert site.watch.withheld() == {}
    site.cache.drop(ANN)
    assert site.watch.withheld()[site.uuid("0")].startswith("checking")
    await site.watch.settled()
    assert site.watch.withheld() == {}


async def test_a_gpu_that_the_engine_did_not_find_is_withheld_until_a_later_look(site):
    await site.watch.read()
    site.watch.doubt([site.uuid("0")])
    assert site.watch.quarantined() == {site.uuid("0"): watch.DOUBTED}
    await site.watch.settled()
    assert site.watch.quarantined() == {}


async def test_a_user_cannot_make_a_gpu_unhealthy_by_what_their_container_says(site):
    await site.watch.read()
    forged = 'gpucampus-health: {"code": "gpu-missing", "missing": 1, "leased": 1, "gpus": "%s"}' % site.uuid("0")  # noqa: UP031
    end = why_ended(Final(exit_code=health.STATUS, oom_killed=False, error="", memory_bytes=1, words=forged))
    assert end.code in health.DOUBTFUL, "it is believed so far that somebody looks"
    site.watch.doubt([site.uuid("0")])
    await site.watch.settled()
    assert site.watch.withheld() == {}
    assert {gpu.uuid: gpu.unhealthy for gpu in site.watch.shown().gpus}[site.uuid("0")] == ""


async def test_a_look_that_began_before_a_doubt_does_not_end_it(site, monkeypatch):
    await site.watch.read()
    answered, gate, ask = asyncio.Event(), asyncio.Event(), nvml.ask

    async def slow(*args, **kwargs):
        answer = await ask(*args, **kwargs)
        answered.set()
        await gate.wait()
        return answer

    monkeypatch.setattr(nvml, "ask", slow)
    looking = asyncio.create_task(site.watch.read())
    await answered.wait()
    site.watch.doubt([site.uuid("0")])
    gate.set()
    assert await looking
    assert site.watch.quarantined() == {site.uuid("0"): watch.DOUBTED}


async def test_a_doubted_gpu_that_the_next_look_does_not_find_stays_withheld(site):
    await site.watch.read()
    lose(site.gpus, 1)
    site.watch.doubt([site.uuid("1")])
    await site.watch.read()
    assert site.watch.quarantined() == {site.uuid("1"): watch.DOUBTED}


async def test_a_doubt_has_the_gpus_looked_at_at_once(site):
    await site.watch.begin()
    site.watch.doubt([site.uuid("0")])
    await wait_until(lambda: not site.watch.quarantined(), timeout=30)
    site.watch.close()


async def test_a_container_removed_behind_our_back_counts_as_an_end_too(site):
    await site.watch.read()
    site.run(1, "1")
    site.cache.apply({"Action": "destroy", "Actor": {"ID": ANN}})
    assert set(site.watch.withheld()) == {site.uuid("1")}


async def test_the_look_comes_by_itself_when_a_server_ends(site):
    await site.watch.begin()
    site.run(1, "0")
    site.cache.drop(ANN)
    await wait_until(lambda: not site.watch.withheld(), timeout=30)
    site.watch.close()


async def test_settled_waits_for_a_process_that_is_still_dying(site):
    add(site.gpus, "gpu 0", "process = 41 500")
    await site.watch.read()
    site.run(1, "0")
    site.cache.drop(ANN)
    waiting = asyncio.create_task(site.watch.settled())
    await wait_until(lambda: "process 41 with 500 MiB" in site.watch.withheld()[site.uuid("0")], timeout=30)
    assert not waiting.done()
    without(site.gpus, "process = 41 500")
    await waiting
    assert site.watch.withheld() == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("process = 41 500", "process 41 with 500 MiB is still on it"),
        ("used_mib = 1025", "1025 MiB of its memory are in use and no process shows"),
    ],
)
async def test_what_is_left_on_a_gpu_keeps_it_in_quarantine_with_the_reason(site, monkeypatch, line, reason):
    monkeypatch.setattr(watch, "PATIENCE_S", 0.5)
    await site.watch.read()
    site.run(1, "0")
    add(site.gpus, "gpu 0", line)
    site.cache.drop(ANN)
    await site.watch.settled()
    await site.watch.read()
    assert reason in site.watch.quarantined()[site.uuid("0")]
    assert [bool(gpu.unhealthy) for gpu in site.watch.shown().gpus] == [True, False, False, False]
    assert reason in site.watch.shown().gpus[0].unhealthy
    assert not any(gpu.unhealthy for gpu in site.watch.node.gpus)  # it is well; it is only not given out


async def test_the_idle_level_is_a_setting(own_gpus, tmp_path):
    site = Site(own_gpus, tmp_path, idle_memory="2G")
    add(own_gpus, "gpu 0", "used_mib = 1025")
    await site.watch.read()
    assert site.watch.withheld() == {}


async def test_a_driver_that_does_not_answer_keeps_what_was_given_back_and_says_why(site):
    await site.watch.read()
    site.run(1, "0")
    site.cache.drop(ANN)
    edit(site.gpus, lambda text: f"init_error = 18\n{text}")
    async with asyncio.timeout(30):
        await site.watch.settled()
    assert set(site.watch.withheld()) == {site.uuid("0")}
    assert "mismatch" in site.watch.withheld()[site.uuid("0")]
    assert len(site.watch.node.gpus) == 4


async def test_settled_asks_nobody_where_nothing_has_ended(site, monkeypatch):
    await site.watch.read()
    monkeypatch.setattr(nvml, "ask", None)
    await site.watch.settled()


async def test_settled_does_not_wait_for_other_gpus_than_those_named(site, monkeypatch):
    await site.watch.read()
    site.run(1, "0")
    site.cache.drop(ANN)
    monkeypatch.setattr(nvml, "ask", None)
    await site.watch.settled([site.uuid("1")])


async def test_a_look_under_way_is_too_old_for_who_asks_now_and_many_share_the_next(site, monkeypatch):
    asked: list[int] = []
    gate, ask = asyncio.Event(), nvml.ask

    async def slow(*args, **kwargs):
        asked.append(len(asked))
        answer = await ask(*args, **kwargs)
        await gate.wait()
        return answer

    monkeypatch.setattr(nvml, "ask", slow)
    first = asyncio.create_task(site.watch.read())
    await wait_until(lambda: asked)
    later = [asyncio.create_task(site.watch.read()) for _ in range(5)]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(first, *later) == [True] * 6
    assert asked == [0, 1]


async def test_a_fault_of_ours_does_not_end_the_looking(site, monkeypatch, caplog):
    ask = nvml.ask
    await site.watch.begin()
    site.run(1, "0")
    monkeypatch.setattr(nvml, "ask", None)
    site.cache.drop(ANN)
    await wait_until(lambda: "the look at the GPUs failed" in caplog.text, timeout=30)
    monkeypatch.setattr(nvml, "ask", ask)
    site.run(2, "0", container=BOB)
    site.cache.drop(BOB)
    await wait_until(lambda: not site.watch.withheld(), timeout=30)
    site.watch.close()


async def test_who_stops_and_starts_again_at_once_is_not_refused_but_a_gpu_in_quarantine_is_not_given(site):
    engine = Engine()
    engine.cache.fresh = True
    numbers = iter(range(100))
    arbiter = Arbiter(
        engine,
        hub="campus",
        nodes=lambda: (site.watch.node,),
        clock=lambda: datetime.now(UTC),
        new_id=lambda: f"lease-{next(numbers)}",
        rules=lambda: PlacementRules(quarantined=frozenset(site.watch.quarantined())),
    )
    await site.watch.read()
    site.run(1, "0", "1", "2")
    site.cache.drop(ANN)
    with pytest.raises(Refused):
        arbiter.reserve(claim(), image="sha256:0")
    await site.watch.settled()
    add(site.gpus, "gpu 0", "process = 41 500")
    await site.watch.read()
    given = {arbiter.reserve(claim(user=user), image="sha256:0").gpus for user in ("ann", "bob")}
    assert given == {(site.uuid("1"),), (site.uuid("2"),)}
    with pytest.raises(Refused):
        arbiter.reserve(claim(user="cem"), image="sha256:0")
    engine.close()


# -- processes of nobody's server, GPUs that vanish --------------------------------------------------------------------


async def test_somebody_else_s_process_withholds_a_gpu_and_is_counted_on_it(site):
    add(site.gpus, "gpu 2", "process = 41 500", "process = 42 1")
    run_in(site.proc, 42, BOB)
    await site.watch.read()
    said = "2 processes that belong to no server are on it (pids 41, 42)"
    assert site.watch.withheld() == {site.uuid("2"): said}
    assert [gpu.foreign_processes for gpu in site.watch.node.gpus] == [0, 0, 2, 0]
    assert site.watch.quarantined() == {}


async def test_the_holder_s_own_process_is_not_foreign_until_the_holder_is_gone(site):
    site.run(1, "0")
    run_in(site.proc, 41, ANN)
    add(site.gpus, "gpu 0", "process = 41 500", "used_mib = 500")
    await site.watch.read()
    assert site.watch.withheld() == {}
    site.cache.drop(ANN)
    assert site.watch.node.gpus[0].foreign_processes == 1


async def test_a_process_on_one_instance_leaves_the_other_to_be_given(site):
    add(site.gpus, "mig 3/0", "process = 41 500")
    await site.watch.read()
    assert set(site.watch.withheld()) == {site.uuid("3:0")}
    assert [part.foreign_processes for part in site.watch.node.gpus[3].mig] == [1, 0]


async def test_a_gpu_that_vanishes_keeps_its_lease_and_stays_as_unhealthy_even_over_a_restart(site):
    held = site.run(1, "1")
    await site.watch.read()
    lose(site.gpus, 1)
    await site.watch.read()
    assert [gpu.unhealthy for gpu in site.watch.node.gpus] == ["", "GPU is lost", "", ""]
    restarted = site.begin()
    await restarted.read()
    states = {gpu.uuid: gpu.unhealthy for gpu in restarted.node.gpus}
    assert states[site.uuid("1")] == "not listed by the driver, and a server still holds it"
    assert sum(not state for state in states.values()) == 3
    assert [item.gpus for item in rebuild(site.cache).leases] == [held.gpus]


async def test_before_the_first_answer_there_is_a_machine_without_gpus_and_nothing_to_withhold(site):
    site.run(1, "0")
    edit(site.gpus, lambda text: f"init_error = 18\n{text}")
    assert not await site.watch.read()
    assert (site.watch.node.gpus, site.watch.withheld()) == ((), {})


async def test_why_there_are_no_gpus_is_logged_once(site, caplog):
    (site.gpus.device_dir / "nvidiactl").unlink()
    await site.watch.read()
    await site.watch.read()
    assert caplog.text.count("Driver Not Loaded") == 1


# -- shares ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def children() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts processes that do nothing for a long time."""
    started = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.wait()


async def test_who_takes_more_than_the_share_is_warned_then_loses_the_biggest_process_and_is_told(
    own_gpus, tmp_path, children
):
    site = Site(own_gpus, tmp_path / "proc", shares_per_gpu=2, share_grace="1s")
    ann, bob = (site.run(n, "0", container=name, mode=Mode.SHARED) for n, name in ((1, ANN), (2, BOB)))
    big, small, other = children(), children(), children()
    for child, container, mib in ((big, ANN, 15000), (small, ANN, 6000), (other, BOB, 20480)):
        run_in(site.proc, child.pid, container)
        add(own_gpus, "gpu 0", f"process = {child.pid} {mib}")
    await site.watch.read()
    assert [item.code for item in site.watch.notices(ann.id)] == [NoticeCode.SHARE_EXCEEDED]
    assert "uses 20.51 GiB of GPU memory and its share is 20 GiB" in notice(site.watch.notices(ann.id)[0])

    async with asyncio.timeout(30):
        while big.poll() is None:
            await site.watch.read()
    assert big.returncode == -9
    assert (small.poll(), other.poll()) == (None, None)
    assert [item.code for item in site.watch.notices(ann.id)] == [NoticeCode.SHARE_EXCEEDED, NoticeCode.SHARE_ENDED]
    assert f"Process {big.pid} of your server was ended" in notice(site.watch.notices(ann.id)[1])
    assert site.watch.notices(bob.id) == ()
    assert site.noted == [(ann, told, site.uuid("0")) for told in site.watch.notices(ann.id)], "the audit is told, too"
    assert dict(site.noted[1][1].params)["pid"] == big.pid


async def test_without_shares_nobody_is_judged(own_gpus, tmp_path, children):
    site = Site(own_gpus, tmp_path / "proc", share_grace="1s")
    ann = site.run(1, "0", mode=Mode.SHARED)
    child = children()
    run_in(site.proc, child.pid, ANN)
    add(own_gpus, "gpu 0", f"process = {child.pid} 40000")
    await site.watch.read()
    assert site.watch.notices(ann.id) == ()


def test_a_number_that_came_to_mean_another_process_is_left_alone(tmp_path, children):
    child = children()
    run_in(tmp_path, child.pid, BOB)
    assert not end_process(child.pid, ANN, proc=tmp_path)
    assert not end_process(child.pid, "", proc=tmp_path)
    assert child.poll() is None
    assert end_process(child.pid, BOB, proc=tmp_path)
    assert child.wait() == -9
    assert not end_process(child.pid, BOB, proc=tmp_path)


def test_a_process_without_a_container_is_never_ended(tmp_path, children):
    child = children()
    (tmp_path / str(child.pid)).mkdir()
    (tmp_path / str(child.pid) / "cgroup").write_text("0::/user.slice\n")
    assert not end_process(child.pid, "", proc=tmp_path)
    assert child.poll() is None


async def test_the_share_is_that_of_the_very_gpu(own_gpus, tmp_path, children):
    divided = {"shares_per_gpu": 2, "shares_by_gpu": {own_gpus.device("0").uuid: 4}}
    site = Site(own_gpus, tmp_path / "proc", share_grace="1h", **divided)
    ann = site.run(1, "0", container=ANN, mode=Mode.SHARED)
    child = children()
    run_in(site.proc, child.pid, ANN)
    add(own_gpus, "gpu 0", f"process = {child.pid} 11000")
    await site.watch.read()
    assert "its share is 10 GiB" in notice(site.watch.notices(ann.id)[0])
