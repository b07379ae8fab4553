"""What the operator closes is known at the next decision, and a database in trouble delays none."""

import asyncio
import threading
import time

from spawner.cordons import Cordons
from spawner.records import Cordon
from tests.core.strategies import NOW


def closed(*targets: str) -> list[Cordon]:
    return [Cordon(target=target, state="cordoned", reason="", since=NOW, by="root") for target in targets]


async def test_each_refresh_sees_what_was_closed_before_it():
    found = closed("GPU-a")
    cordons = Cordons(lambda: tuple(found))
    await cordons.refresh()
    assert cordons.closed == {"GPU-a"}
    found[:] = closed("GPU-b")
    await cordons.refresh()
    assert cordons.closed == {"GPU-b"}


async def test_a_database_that_hangs_delays_a_start_by_the_limit_and_is_not_asked_twice():
    go, asked = threading.Event(), list[int]()

    def read() -> list[Cordon]:
        asked.append(1)
        go.wait(10)
        return closed("GPU-a")

    cordons = Cordons(read)
    began = time.monotonic()
    await asyncio.gather(*(cordons.refresh(0.1) for _ in range(5)))
    assert time.monotonic() - began < 5
    assert (len(asked), cordons.closed) == (1, frozenset())
    go.set()
    await cordons.refresh()
    assert cordons.closed == {"GPU-a"}


async def test_a_database_in_trouble_leaves_what_was_known_and_is_said_once(caplog):
    broken = False

    def read() -> list[Cordon]:
        if broken:
            raise OSError("disk on fire\nsecond line")
        return closed("GPU-a")

    cordons = Cordons(read)
    await cordons.refresh()
    broken = True
    await cordons.refresh()
    await cordons.refresh()
    assert cordons.closed == {"GPU-a"}
    assert [record.message for record in caplog.records] == [
        "what is cordoned cannot be read, the last answer holds: disk on fire"
    ]


async def test_who_waited_for_an_earlier_reading_reads_once_more():
    """A reading under way may have begun before the drain that the waiting start must see."""
    found, go, began = closed(), threading.Event(), threading.Event()

    def read() -> list[Cordon]:
        now = tuple(found)
        began.set()
        go.wait(10)
        return list(now)

    cordons = Cordons(read)
    first = asyncio.create_task(cordons.refresh(10))
    await asyncio.to_thread(began.wait, 10)
    found[:] = closed("GPU-a")
    second = asyncio.create_task(cordons.refresh(10))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, second)
    assert cordons.closed == {"GPU-a"}
