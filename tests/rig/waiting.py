"""Waiting for something to become true, with a limit; tests never sleep for a fixed time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

__all__ = ["wait_until", "wait_until_sync"]

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5


async def wait_until(check: Callable[[], T | Awaitable[T]], timeout: float = 60, what: str = "") -> T:  # noqa: ASYNC109
    """Return the first true answer of a check, which may be a coroutine function; AssertionError after the limit."""
    end, pause = time.monotonic() + timeout, FIRST_PAUSE_S
    while True:
        answer = check()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(_text(check, timeout, what, value))
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def wait_until_sync(check: Callable[[], T], timeout: float = 60, what: str = "") -> T:
    """Return the first true answer of a check; AssertionError after the limit."""
    end, pause = time.monotonic() + timeout, FIRST_PAUSE_S
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(_text(check, timeout, what, value))
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _text(check: object, timeout: float, what: str, last: object) -> str:
    claim = what or getattr(check, "__qualname__", repr(check))
    return f"{claim} was not true within {timeout:g} s; the last answer was {last!r}"
