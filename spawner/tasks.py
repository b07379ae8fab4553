"""Tasks that outlive whoever asked for them: steps, which a cancelled wait does not stop, and chores, one of a kind."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, TypeVar

__all__ = ["Chores", "Steps"]

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Steps:
    """Steps under way, by the lease they are for; a lease may have several at once."""

    def __init__(self) -> None:
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._tasks

    async def run(self, lease_id: str, step: Coroutine[Any, Any, T]) -> T:
        """Carry a step out in a task of its own: cancelling this call only ends the waiting."""
        task = asyncio.create_task(step)
        self._tasks.setdefault(lease_id, set()).add(task)
        task.add_done_callback(lambda done: self._done(lease_id, done))
        return await asyncio.shield(task)

    async def idle(self, lease_id: str) -> None:
        """Wait until no step of a lease is under way, whatever came of them."""
        while tasks := self._tasks.get(lease_id):
            await asyncio.wait(tuple(tasks))

    def cancel(self) -> None:
        """Give up all of them; what their engine calls do goes on without us."""
        for tasks in self._tasks.values():
            for task in tasks:
                task.cancel()

    def _done(self, lease_id: str, task: asyncio.Task[Any]) -> None:
        left = self._tasks[lease_id]
        left.discard(task)
        if not left:
            del self._tasks[lease_id]
        if not task.cancelled() and (error := task.exception()):
            LOG.debug("lease=%s: %s", lease_id, error)


class Chores:
    """Pieces of cleaning, each at most once at a time by its key."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tasks

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin a chore, or give the one of that key which is under way."""
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._run(key, work))
        return self._tasks[key]

    def cancel(self) -> None:
        """Give up all of them."""
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, key: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            LOG.exception("The chore %s failed", key)
        finally:
            del self._tasks[key]
