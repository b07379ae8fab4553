"""Threads for calls that may hang, so that nothing else waits for them, not even the end of the process.

Python waits at its exit for every thread of a ThreadPoolExecutor. A call to an engine that does not answer would hold
the hub's end for as long; the threads here are daemons, and are left behind.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["Lane"]

T = TypeVar("T")


class Lane:
    """At most `threads` calls at once, the others in the order they came; threads are made when they are needed."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._most = threads
        self._made = 0
        self._idle = 0
        self._closed = False
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()

    async def run(self, work: Callable[[], T], limit_s: float) -> T:
        """Run work in a thread; TimeoutError after the limit. The thread goes on then, as it does when cancelled."""
        # not asyncio.wait_for: that of Python 3.11 forgets a cancellation that comes together with the answer
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(self._submit(work))

    def close(self) -> None:
        """Let idle threads end and drop what waits; calls under way are left to their own limits."""
        with self._changed:
            self._closed = True
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._changed.notify_all()

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the lane {self._name} is closed")
            self._waiting.append((future, work))
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._made < self._most:
                self._made += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._made}", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._idle -= 1
                if not self._waiting:
                    return
                future, work = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answer = work()
            except BaseException as error:  # noqa: BLE001 - it is the caller's, who gets it with its traceback
                future.set_exception(error)
            else:
                future.set_result(answer)
            del future, work
