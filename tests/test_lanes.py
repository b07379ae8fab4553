"""A call that hangs holds nothing up: no other call, no cancellation, not the end of the process."""

import asyncio
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from spawner.lanes import Lane
from tests.rig.waiting import wait_until

END_WHILE_AN_ENGINE_HANGS = """
import asyncio, os, socket, sys, tempfile
from spawner.arbiter import Arbiter
from spawner.core.model import Node
from spawner.docker_api import Engine
from datetime import UTC, datetime

folder = tempfile.mkdtemp()
listening = socket.socket(socket.AF_UNIX)
listening.bind(folder + "/sock")
listening.listen(50)  # it takes every call and answers none
os.environ["DOCKER_HOST"] = "unix://" + folder + "/sock"

async def main():
    engine = Engine()
    arbiter = Arbiter(engine, hub="h", nodes=lambda: (Node(name="n"),), clock=lambda: datetime.now(UTC), new_id=str)
    await arbiter.begin(0.2)
    arbiter.abandon("lease")
    calls = [asyncio.create_task(engine.call("stop", "x", lane=lane)) for lane in ("slow", "control") for _ in range(3)]
    await asyncio.sleep(0.2)
    # what JupyterHub does at SIGTERM: cancel every task once, and wait for all of them
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    print("cancelled", len(tasks))

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""


def test_a_hub_ends_at_once_while_the_engine_hangs():
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", END_WHILE_AN_ENGINE_HANGS], check=False, capture_output=True, text=True, timeout=25
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cancelled")
    assert time.monotonic() - began < 10, "the interpreter waited for the threads of calls that hang"


async def test_a_cancellation_that_comes_with_the_answer_is_not_lost():
    lane = Lane("test", 1)
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def wait_for_ever() -> None:
        while True:
            await lane.run(lambda: loop.call_soon_threadsafe(answered.set), 5)

    for _ in range(20):
        answered.clear()
        waiting = asyncio.create_task(wait_for_ever())
        await answered.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waiting, 5)
    lane.close()


async def test_calls_run_side_by_side_up_to_the_lanes_width_and_the_rest_in_order():
    lane = Lane("test", 2)
    gate, began = threading.Event(), []

    def work(number: int) -> int:
        began.append(number)
        gate.wait(10)
        return number

    running = [asyncio.create_task(lane.run(partial(work, number), 10)) for number in range(4)]
    await wait_until(lambda: len(began) == 2, 5)
    assert began == [0, 1]
    gate.set()
    assert await asyncio.gather(*running) == [0, 1, 2, 3]
    lane.close()


async def test_a_call_that_takes_too_long_is_left_alone_and_its_error_is_the_callers():
    lane = Lane("test", 2)
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        await lane.run(lambda: gate.wait(10), 0.05)
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0, 5)
    gate.set()
    lane.close()
    with pytest.raises(RuntimeError):
        await lane.run(int, 1)
