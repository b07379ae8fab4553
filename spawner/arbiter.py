"""The only owner of create, start, stop and remove.

- place + reserve is one synchronous step: no two spawns can read the same free list.
- Each engine call runs in a task of the arbiter's own. Cancelling a spawn only ends the waiting; the arbiter is told
  with `abandon` and removes whatever is, or becomes, there.
- A reservation ends when its task ends: success becomes the lease (the container's labels), anything else is removed.
- Unknown is not gone: while the engine does not answer, every lease stays and nothing is granted.
- A reaper removes what nobody owns: containers that were created and never started, and dead ones once it is known why.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from spawner.audit import Observer, Unobserved
from spawner.core.exits import End, EndCode, why_ended
from spawner.core.ledger import LABEL, Container, Ledger, rebuild, to_labels
from spawner.core.model import Claim, Code, Lease, Node, Refusal
from spawner.core.policy import place
from spawner.docker_api import Engine, EngineRefuses, EngineSaysGone, EngineUnknown

__all__ = ["Arbiter", "Refused"]

LOG = logging.getLogger(__name__)
T = TypeVar("T")
TICK_S = 20.0
STOP_GRACE_S = 10
STOP_MARGIN_S = 15
_ENDS_KEPT = 1000


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """A claim was turned down; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code.value)
        self.refusal = refusal


class Arbiter:
    """Decides on claims and carries them out on one engine.

    Parameters
    ----------
    engine
        Where containers live.
    hub
        This hub's name; containers of other hubs count as taken and are never touched.
    nodes
        Gives the latest inventory, without waiting.
    withheld
        Gives the UUIDs that must not be given out although no lease names them, each with the reason.
    clock, new_id
        Time in UTC, and a new unique lease id.
    observer
        Is told what becomes of leases.
    closed
        Gives what the operator has drained or cordoned, without waiting.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        hub: str,
        nodes: Callable[[], Sequence[Node]],
        clock: Callable[[], datetime],
        new_id: Callable[[], str],
        observer: Observer | None = None,
        closed: Callable[[], frozenset[str]] = frozenset,
        withheld: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.engine = engine
        self.hub = hub
        self.nodes = nodes
        self.clock = clock
        self.new_id = new_id
        self.observer = observer or Unobserved()
        self.closed = closed
        self.withheld = withheld
        self._reserved: dict[str, Lease] = {}
        self._steps: dict[str, asyncio.Task[Any]] = {}
        self._chores: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, End] = {}
        self._listeners: dict[str, Callable[[], None]] = {}
        self._ticker: asyncio.Task[None] | None = None

    # -- what is ---------------------------------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        """Who holds what: the engine's containers and the reservations under way."""
        found = rebuild(self.engine.cache)
        held = {lease.id for lease in found.leases}
        pending = tuple(lease for key, lease in sorted(self._reserved.items()) if key not in held)
        return Ledger(leases=found.leases + pending, orphans=found.orphans, conflicts=found.conflicts)

    def find(self, user: str, server: str) -> Container | None:
        """Find a running container of this hub for a server, by its labels."""
        wanted = {LABEL + "hub": self.hub, LABEL + "user": user, LABEL + "server": server, LABEL + "kind": "server"}
        for container in self.engine.cache:
            if container.state == "running" and wanted.items() <= container.labels.items():
                return container
        return None

    def holds(self, lease_id: str) -> bool:
        """Whether anything of a lease is left: a reservation, or a container in any state."""
        return lease_id in self._reserved or self.engine.cache.by_lease(lease_id) is not None

    def end_of(self, lease_id: str) -> End | None:
        """Why a lease ended; None while it runs, or while that cannot be told."""
        if lease_id in self._reserved or not self.engine.cache.fresh:
            return None
        container = self.engine.cache.by_lease(lease_id)
        if container is not None and container.state not in ("exited", "dead"):
            return None
        return self._ends.get(lease_id, End(code=EndCode.GONE))

    def tell(self, lease_id: str, listener: Callable[[], None]) -> None:
        """Call back once when a lease ends."""
        self._listeners[lease_id] = listener

    # -- the life of a lease ---------------------------------------------------------------------------------------

    def reserve(self, claim: Claim, *, image: str) -> Lease:
        """Place a claim and reserve what it gets, in one step; Refused says what stands against it."""
        if not self.engine.cache.fresh:
            raise Refused(Refusal.of(Code.ENGINE_UNKNOWN))
        now = self.clock()
        ledger = self.ledger()
        withheld = ledger.withheld.union(self.withheld(), self.closed())
        answer = place(claim, self.nodes(), ledger.leases, now, withheld=withheld)
        if isinstance(answer, Refusal):
            raise Refused(answer)
        lease = Lease(
            id=self.new_id(),
            hub=self.hub,
            kind="server",
            user=claim.user,
            server=claim.server,
            variant=claim.variant.name,
            image=image,
            gpus=answer.gpus,
            mode=claim.mode,
            memory_bytes=claim.limits.memory_bytes,
            cpus=claim.limits.cpus,
            granted=now,
            expires=now + timedelta(seconds=claim.entitlement.max_runtime_s),
        )
        self._reserved[lease.id] = lease
        self.observer.granted(lease)
        LOG.info("reserved lease=%s user=%s server=%s gpu=%s", lease.id, lease.user, lease.server, ",".join(lease.gpus))
        return lease

    async def create(self, lease_id: str, **create: Any) -> dict[str, Any]:
        """Create the container of a reservation; the lease's labels replace all others."""
        lease = self._reserved[lease_id]
        return await self._own(lease_id, self._create(lease, create))

    async def start(self, lease_id: str, container_id: str) -> None:
        """Start the container; from then on its labels are the lease and the reservation ends."""
        await self._own(lease_id, self._start(lease_id, container_id))

    async def stop(self, lease_id: str, container_id: str, grace_s: int = STOP_GRACE_S) -> None:
        """Stop a container as by hand. EngineUnknown when the engine does not answer in time; the lease stays then."""
        by_us = End(code=EndCode.STOPPED)
        self._ends.setdefault(lease_id, by_us)
        try:
            await self._own(lease_id, self._stop(container_id, grace_s))
        except (EngineUnknown, EngineRefuses):
            if self._ends.get(lease_id) is by_us:  # it goes on, and may end for another reason
                del self._ends[lease_id]
            raise

    async def remove(self, lease_id: str, container_id: str) -> None:
        """Remove a container, whatever its state."""
        await self._own(lease_id, self._remove(container_id))
        self._finished(lease_id)

    def abandon(self, lease_id: str) -> None:
        """Give up a lease: nobody waits for it any more, and whatever is or becomes there is removed."""
        self._chore(lease_id, lambda: self._clear(lease_id))

    async def retire(self, user: str, server: str) -> None:
        """Stop and remove what an earlier life of this hub left running for a server that is about to start anew."""
        while (left := self.find(user, server)) is not None:
            lease_id = left.labels[LABEL + "lease"]
            LOG.warning("removing an earlier container of user=%s server=%s lease=%s", user, server, lease_id)
            await self.stop(lease_id, left.id)
            await self.remove(lease_id, left.id)

    # -- running ---------------------------------------------------------------------------------------------------

    async def begin(self, timeout_s: float) -> bool:
        """Follow the engine, rebuild the ledger from it and start the reaper; False if it did not answer yet."""
        self.engine.follow(self.ended)
        self._ticker = asyncio.create_task(self._tick())
        return await self.engine.listed(timeout_s)

    async def close(self) -> None:
        """Stop the reaper and wait for nothing: what is under way is found again by its labels."""
        if self._ticker:
            self._ticker.cancel()
        for task in (*self._chores.values(), *self._steps.values()):
            task.cancel()
        self.engine.close()

    def ended(self, container_id: str) -> None:
        """Look at a container that ended: find out why, remove it, tell whoever waits."""
        container = self.engine.cache.get(container_id)
        if container is not None and container.labels.get(LABEL + "hub") == self.hub:
            self._chore(container_id, lambda: self._bury(container))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S if self.engine.cache.fresh else 1.0)
            if self.engine.cache.fresh:
                self.reap()

    def reap(self) -> None:
        """Remove what nobody owns and stop what has reached its end; each in a task of its own."""
        now = self.clock()
        for container in self.engine.cache:
            lease_id = container.labels.get(LABEL + "lease", "")
            if container.labels.get(LABEL + "hub") != self.hub or lease_id in self._reserved or lease_id in self._steps:
                continue
            if container.state == "created":
                LOG.warning("removing a container that was never started lease=%s", lease_id)
                self.abandon(lease_id)
            elif container.state in ("exited", "dead"):
                self.ended(container.id)
        for lease in self.ledger().leases:
            if lease.hub == self.hub and lease.expires <= now and (found := self.engine.cache.by_lease(lease.id)):
                LOG.info("lease=%s of user=%s reached its end", lease.id, lease.user)
                self._ends[lease.id] = End(code=EndCode.EXPIRED)
                self._chore(lease.id, partial(self.stop, lease.id, found.id))

    # -- steps, each in a task that a cancelled spawn cannot stop ------------------------------------------------------

    async def _own(self, lease_id: str, step: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(step)
        self._steps[lease_id] = task
        task.add_done_callback(lambda done: self._step_done(lease_id, done))
        return await asyncio.shield(task)

    def _step_done(self, lease_id: str, task: asyncio.Task[Any]) -> None:
        if self._steps.get(lease_id) is task:
            del self._steps[lease_id]
        if not task.cancelled() and (error := task.exception()):
            LOG.debug("lease=%s: %s", lease_id, error)

    async def _create(self, lease: Lease, create: dict[str, Any]) -> dict[str, Any]:
        labels = to_labels(lease)
        made: dict[str, Any] = await self.engine.call("create_container", **(create | {"labels": labels}))
        self.engine.cache.put(
            Container(id=made["Id"], name=str(create.get("name", "")), state="created", labels=labels)
        )
        return made

    async def _start(self, lease_id: str, container_id: str) -> None:
        await self.engine.call("start", container_id)
        known = self.engine.cache.get(container_id)
        if known is not None and known.state == "created":
            self.engine.cache.put(Container(id=known.id, name=known.name, state="running", labels=known.labels))
        if lease := self._reserved.pop(lease_id, None):
            self.observer.started(lease, container_id)

    async def _stop(self, container_id: str, grace_s: int) -> None:
        try:
            await self.engine.call("stop", container_id, timeout=grace_s, lane="slow", limit_s=grace_s + STOP_MARGIN_S)
        except EngineSaysGone:
            self.engine.cache.drop(container_id)

    async def _remove(self, container_id: str) -> None:
        try:
            await self.engine.call("remove_container", container_id, v=True, force=True, lane="slow")
        except EngineSaysGone:
            pass
        except EngineRefuses as error:
            # 409: somebody else is removing it; the destroy event will tell
            LOG.debug("%s", error)
            return
        self.engine.cache.drop(container_id)

    async def _bury(self, container: Container) -> None:
        lease_id = container.labels[LABEL + "lease"]
        try:
            final = await self.engine.final(container.id)
            if final is None:  # it runs again, or still
                return
            if lease_id in self._steps and lease_id in self._reserved:
                return  # a start that fails is cleared by whoever waits for it
            self._ends.setdefault(lease_id, why_ended(final))
        except EngineSaysGone:
            self.engine.cache.drop(container.id)
        LOG.info("lease=%s ended: %s", lease_id, self._ends.get(lease_id))
        await self._remove(container.id)
        self._finished(lease_id)

    async def _clear(self, lease_id: str) -> None:
        """Remove every container of a lease, for as long as it takes until the engine has confirmed it."""
        pause = 0.2
        while True:
            if step := self._steps.get(lease_id):
                await asyncio.wait([step])
            try:
                label = {"label": f"{LABEL}lease={lease_id}"}
                for row in await self.engine.call("containers", all=True, filters=label):
                    if row["Labels"].get(LABEL + "hub") == self.hub:
                        await self._remove(row["Id"])
                break
            except (EngineUnknown, EngineRefuses) as error:
                LOG.warning("lease=%s stays until its container is known to be gone: %s", lease_id, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)
        self._reserved.pop(lease_id, None)
        self._finished(lease_id)

    def _finished(self, lease_id: str) -> None:
        """Note the end of a lease and tell whoever asked to be told."""
        self.observer.ended(lease_id, self._ends.setdefault(lease_id, End(code=EndCode.GONE)))
        while len(self._ends) > _ENDS_KEPT:
            del self._ends[next(iter(self._ends))]
        if listener := self._listeners.pop(lease_id, None):
            listener()

    def _chore(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a piece of cleaning once at a time; an engine that does not answer is asked again by the next tick."""
        if key in self._chores:
            return

        async def run() -> None:
            try:
                await work()
            except (EngineUnknown, EngineRefuses) as error:
                LOG.warning("%s: will try again: %s", key[:12], error)
            finally:
                del self._chores[key]

        self._chores[key] = asyncio.create_task(run())
