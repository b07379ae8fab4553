"""How leases end: by a stop, by a death, or because nobody waits for them any more.

- A container is removed once it is known why it ended; a lease ends when the engine has confirmed the removal.
- Whatever the engine does not do is asked for again until it is done. Until then the lease is quarantined: its GPUs are
  not free, and nobody else waits for it.
- Nothing here decides who gets what; arbiter.py does.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from spawner.audit import Observer
from spawner.core.exits import End, EndCode, why_ended
from spawner.core.ledger import LABEL, Container
from spawner.core.model import Lease
from spawner.docker_api import Engine, EngineRefuses, EngineSaysGone, EngineUnknown
from spawner.tasks import Chores, Steps

__all__ = ["STOP_GRACE_S", "Endings"]

LOG = logging.getLogger(__name__)
STOP_GRACE_S = 10
STOP_MARGIN_S = 15
LATE_CREATE_S = 60.0  # so long a create that was never answered may still bring its container
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
_PATIENCE = 4  # so many removals may be somebody else's before the lease counts as stuck
_ENDS_KEPT = 1000
_UNANSWERED = (EngineUnknown, EngineRefuses)


class Endings:
    """Ends the leases of one hub on one engine, and knows how they ended."""

    def __init__(self, engine: Engine, hub: str, observer: Observer) -> None:
        self.engine = engine
        self.hub = hub
        self.observer = observer
        self.reserved: dict[str, Lease] = {}
        self.steps = Steps()
        self.chores = Chores()
        self._late: dict[str, float] = {}
        self._stuck: dict[str, str] = {}
        self._ends: dict[str, End] = {}
        self._listeners: dict[str, Callable[[], None]] = {}

    # -- what is ---------------------------------------------------------------------------------------------------

    def quarantined(self) -> Mapping[str, str]:
        """Leases whose containers the engine was told to end and did not, with its words; they are not free."""
        return {lease_id: why for lease_id, why in sorted(self._stuck.items()) if self.holds(lease_id)}

    def holds(self, lease_id: str) -> bool:
        """Whether anything of a lease is left: a reservation, or a container in any state."""
        return lease_id in self.reserved or self.engine.cache.by_lease(lease_id) is not None

    def leaves(self, lease_id: str) -> bool:
        """Whether a lease is being ended."""
        return ("clear", lease_id) in self.chores or ("end", lease_id) in self.chores

    def end_of(self, lease_id: str) -> End | None:
        """Why a lease ended; None while it runs, or while that is not known."""
        if lease_id in self.reserved or not self.engine.cache.fresh:
            return None
        container = self.engine.cache.by_lease(lease_id)
        if container is None:
            return self._ends.get(lease_id, End(code=EndCode.GONE))
        # of one that has just ended the reason is being read: no other one is made up meanwhile
        return self._ends.get(lease_id) if container.ended else None

    def tell(self, lease_id: str, listener: Callable[[], None]) -> None:
        """Call back once when a lease ends."""
        self._listeners[lease_id] = listener

    def ours(self, container: Container) -> bool:
        """Whether a container is this hub's; others' count as taken and are never touched."""
        return container.labels.get(LABEL + "hub") == self.hub and LABEL + "lease" in container.labels

    def resume(self, quarantined: Mapping[str, str]) -> None:
        """Begin again the removals that the last hub process did not bring to an end, each with the engine's words."""
        for lease_id, why in quarantined.items():
            LOG.warning("lease=%s is quarantined since before this hub's start: %s", lease_id, why)
            self._stuck.setdefault(lease_id, why)
            self.abandon(lease_id)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def stop(self, lease_id: str, container_id: str, grace_s: int = STOP_GRACE_S) -> None:
        """Stop a container as by hand.

        EngineUnknown where the engine does not do it in time: the lease is quarantined, and removed when it can be.
        """
        by_us = End(code=EndCode.STOPPED)
        self._ends.setdefault(lease_id, by_us)
        try:
            await self.steps.run(lease_id, self._stop(container_id, grace_s))
        except _UNANSWERED as error:
            if self._ends.get(lease_id) is by_us:  # it goes on, and may end for another reason
                del self._ends[lease_id]
            self._quarantine(lease_id, str(error))
            self.abandon(lease_id)
            raise

    async def remove(self, lease_id: str, container_id: str) -> None:
        """Remove a container, whatever its state; what the engine does not confirm is seen to by the arbiter."""
        if not await self.steps.run(lease_id, self._remove(container_id)):
            self.abandon(lease_id)

    def abandon(self, lease_id: str) -> asyncio.Task[None]:
        """Remove whatever is, or becomes, there of a lease; the task is done when nothing is."""
        return self.chores.begin(("clear", lease_id), partial(self._clear, lease_id))

    def end(self, lease_id: str, why: EndCode) -> asyncio.Task[None]:
        """Stop a server with the usual grace, then remove it; the task is done when nothing is left."""
        return self.chores.begin(("end", lease_id), partial(self._end, lease_id, End(code=why)))

    def bury(self, container: Container) -> None:
        """Look at a container that ended or is gone: find out why, remove it, tell whoever waits."""
        if self.ours(container):
            self.chores.begin(("bury", container.id), partial(self._bury, container))

    def discard(self, container: Container) -> None:
        """Remove a container that was never started, once the engine says that this is so."""
        self.chores.begin(("discard", container.id), partial(self._discard, container))

    def comes_late(self, lease_id: str) -> None:
        """Note that a create was not answered: its container may appear when nobody counts on it any more."""
        self._late[lease_id] = time.monotonic() + LATE_CREATE_S

    # -- steps and chores --------------------------------------------------------------------------------------------

    async def _stop(self, container_id: str, grace_s: int) -> None:
        try:
            await self.engine.call("stop", container_id, timeout=grace_s, lane="slow", limit_s=grace_s + STOP_MARGIN_S)
        except EngineSaysGone:
            self._gone(container_id)

    async def _remove(self, container_id: str, *, force: bool = True) -> bool:
        """Remove a container; False where the engine is not through with it, or does not want to."""
        try:
            await self.engine.call("remove_container", container_id, v=True, force=force, lane="slow")
        except EngineSaysGone:
            pass
        except EngineRefuses as error:
            LOG.debug("%s", error)  # 409: somebody else is removing it, or it runs again
            return False
        self._gone(container_id)
        return True

    async def _bury(self, container: Container) -> None:
        """Find out why a container ended, then remove it."""
        lease_id = container.labels[LABEL + "lease"]
        await self.steps.idle(lease_id)  # a stop says by itself that it was one
        if lease_id in self.reserved:
            return  # a start that failed is cleared by whoever waits for it
        try:
            if self.engine.cache.get(container.id):
                final = await self.engine.final(container.id)
                if final is None:  # an event of an earlier life: it runs again
                    self.engine.cache.put(replace(container, state="running"))
                    return
                self._ends.setdefault(lease_id, why_ended(final))
                LOG.info("lease=%s ended: %s", lease_id, self._ends.get(lease_id))
                await self._remove(container.id, force=False)
        except EngineSaysGone:
            self._gone(container.id)
        except _UNANSWERED as error:
            LOG.warning("lease=%s has ended and stays until its container can be removed: %s", lease_id, error)
        if not self.holds(lease_id):
            self._finished(lease_id)

    async def _discard(self, container: Container) -> None:
        try:
            found = await self.engine.inspect(container.id)
        except _UNANSWERED:
            return
        state = found["State"]["Status"] if found else "created"
        if state != "created":
            self.engine.cache.put(replace(container, state=state))
            return
        LOG.warning("removing a container that was never started lease=%s", container.labels[LABEL + "lease"])
        self.abandon(container.labels[LABEL + "lease"])

    async def _end(self, lease_id: str, why: End) -> None:
        LOG.info("lease=%s is ended: %s", lease_id, why.code)
        self._ends.setdefault(lease_id, why)
        found = self.engine.cache.by_lease(lease_id)
        try:
            if found is not None and found.state == "running":
                await self.stop(lease_id, found.id)
        except _UNANSWERED as error:
            LOG.warning("lease=%s did not stop and is removed by force: %s", lease_id, error)
        await self.abandon(lease_id)

    async def _clear(self, lease_id: str) -> None:
        """Remove every container of a lease, for as long as it takes until the engine has confirmed it."""
        pause, tries = FIRST_PAUSE_S, 0
        while True:
            await self.steps.idle(lease_id)
            try:
                swept = await self._sweep(lease_id)
                if swept and self._late.get(lease_id, 0) <= time.monotonic():
                    break
                tries += not swept
                if tries > _PATIENCE:
                    self._quarantine(lease_id, "its removal does not come to an end")
            except _UNANSWERED as error:
                LOG.warning("lease=%s stays until its container is known to be gone: %s", lease_id, error)
                self._quarantine(lease_id, str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
        self.reserved.pop(lease_id, None)
        self._finished(lease_id)

    async def _sweep(self, lease_id: str) -> bool:
        """Remove what there is of a lease now; whether the engine has confirmed all of it."""
        label = {"label": f"{LABEL}lease={lease_id}"}
        known = self.engine.cache.by_lease(lease_id)
        rows = await self.engine.call("containers", all=True, filters=label)
        if known is not None and known.id not in [row["Id"] for row in rows]:
            self._gone(known.id)  # known before it was asked for, so the list is not older than it
        return all([await self._remove(row["Id"]) for row in rows if row["Labels"].get(LABEL + "hub") == self.hub])

    def _quarantine(self, lease_id: str, why: str) -> None:
        """Note that the engine does not end a lease, and have it written down for the next hub process."""
        if lease_id not in self._stuck:
            self.observer.quarantined(lease_id, why)
        self._stuck[lease_id] = why

    def _gone(self, container_id: str) -> None:
        """Note that the engine says of a container that it is gone."""
        known = self.engine.cache.drop(container_id)
        lease_id = known.labels.get(LABEL + "lease", "") if known else ""
        self._late.pop(lease_id, None)  # it has come
        if lease_id and not self.holds(lease_id):
            self._finished(lease_id)

    def _finished(self, lease_id: str) -> None:
        """Note the end of a lease and tell whoever asked to be told."""
        self.observer.ended(lease_id, self._ends.setdefault(lease_id, End(code=EndCode.GONE)))
        while len(self._ends) > _ENDS_KEPT:
            del self._ends[next(iter(self._ends))]
        self._stuck.pop(lease_id, None)
        self._late.pop(lease_id, None)
        if listener := self._listeners.pop(lease_id, None):
            listener()
