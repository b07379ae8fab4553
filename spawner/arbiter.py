"""The only owner of create, start, stop and remove.

- place + reserve is one synchronous step: no two spawns can read the same free list.
- Each engine call runs in a task of the arbiter's own. Cancelling a spawn only ends the waiting; the arbiter is told
  with `abandon` and removes whatever is, or becomes, there.
- A reservation ends when its task ends: success becomes the lease (the container's labels), anything else is removed.
- Unknown is not gone: while the engine does not answer, every lease stays and nothing is granted.
- A container that the engine was told to end and did not is quarantined: its lease stays, and holds nobody else up.
- A reaper removes what nobody owns: containers that were created and never started, and dead ones once it is known why.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from spawner.audit import Observer, Unobserved
from spawner.core.exits import End, EndCode
from spawner.core.ledger import LABEL, Container, Ledger, rebuild, to_labels
from spawner.core.model import Claim, Code, Lease, Node, PlacementRules, Refusal, lease_for
from spawner.core.policy import place
from spawner.docker_api import Engine, EngineSilent
from spawner.endings import STOP_GRACE_S, Endings

__all__ = ["Arbiter", "Refused"]

LOG = logging.getLogger(__name__)
TICK_S = 5.0
KNOWN_STEP_S = 0.5
RETIRE_LIMIT_S = 30.0  # so long a new start waits for what is left of the server's earlier life
_RUNS = frozenset({"running", "paused", "restarting"})


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
    clock, new_id
        Time in UTC, and a new unique lease id.
    observer
        Is told what becomes of leases.
    rules
        Gives what the operator has set, and what is closed or quarantined now, without waiting.
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
        rules: Callable[[], PlacementRules] = PlacementRules,
    ) -> None:
        self.engine = engine
        self.hub = hub
        self.nodes = nodes
        self.clock = clock
        self.new_id = new_id
        self.observer = observer or Unobserved()
        self.rules = rules
        self.endings = Endings(engine, hub, self.observer)
        self._reserved = self.endings.reserved
        self._ticker: asyncio.Task[None] | None = None

    # -- what is ---------------------------------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        """Who holds what: the engine's containers and the reservations under way."""
        found = rebuild(self.engine.cache)
        held = {lease.id for lease in found.leases}
        pending = tuple(lease for key, lease in sorted(self._reserved.items()) if key not in held)
        return Ledger(leases=found.leases + pending, orphans=found.orphans, conflicts=found.conflicts)

    def quarantined(self) -> Mapping[str, str]:
        """Leases whose containers the engine was told to end and did not, with its words; they are not free."""
        return self.endings.quarantined()

    def find(self, user: str, server: str) -> Container | None:
        """Find the container of this hub that runs a server, by its labels; the newest, and none that is to go."""
        found = [
            c
            for c in self._of_server(user, server)
            if c.state in _RUNS and not self.endings.leaves(c.labels[LABEL + "lease"])
        ]
        return max(found, key=lambda c: c.labels.get(LABEL + "granted", ""), default=None)

    def holds(self, lease_id: str) -> bool:
        """Whether anything of a lease is left: a reservation, or a container in any state."""
        return self.endings.holds(lease_id)

    def end_of(self, lease_id: str) -> End | None:
        """Why a lease ended; None while it runs, or while that is not known."""
        return self.endings.end_of(lease_id)

    def tell(self, lease_id: str, listener: Callable[[], None]) -> None:
        """Call back once when a lease ends."""
        self.endings.tell(lease_id, listener)

    # -- the life of a lease ---------------------------------------------------------------------------------------

    def reserve(self, claim: Claim, *, image: str) -> Lease:
        """Place a claim and reserve what it gets, in one step; Refused says what stands against it."""
        if not self.engine.cache.fresh:
            raise Refused(Refusal.of(Code.ENGINE_UNKNOWN))
        now = self.clock()
        ledger = self.ledger()
        answer = place(
            claim,
            self.nodes(),
            ledger.leases,
            now,
            withheld=ledger.withheld,
            orphans=ledger.orphans,
            rules=self.rules(),
        )
        if isinstance(answer, Refusal):
            raise Refused(answer)
        lease = lease_for(claim, answer, lease_id=self.new_id(), hub=self.hub, image=image, now=now)
        self._reserved[lease.id] = lease
        self.observer.granted(lease)
        LOG.info("reserved lease=%s user=%s server=%s gpu=%s", lease.id, lease.user, lease.server, ",".join(lease.gpus))
        return lease

    async def create(self, lease_id: str, **create: Any) -> dict[str, Any]:
        """Create the container of a reservation; the lease's labels replace all others."""
        return await self.endings.steps.run(lease_id, self._create(self._wanted(lease_id), create))

    async def start(self, lease_id: str, container_id: str) -> None:
        """Start the container; from then on its labels are the lease and the reservation ends."""
        self._wanted(lease_id)
        await self.endings.steps.run(lease_id, self._start(lease_id, container_id))

    async def stop(self, lease_id: str, container_id: str, grace_s: int = STOP_GRACE_S) -> None:
        """Stop a container as by hand.

        EngineUnknown where the engine does not do it in time: the lease is quarantined, and removed when it can be.
        """
        await self.endings.stop(lease_id, container_id, grace_s)

    async def remove(self, lease_id: str, container_id: str) -> None:
        """Remove a container, whatever its state; what the engine does not confirm is seen to by the arbiter."""
        await self.endings.remove(lease_id, container_id)

    def abandon(self, lease_id: str) -> None:
        """Give up a lease: nobody waits for it any more, and whatever is or becomes there is removed."""
        self.endings.abandon(lease_id)

    async def retire(self, user: str, server: str) -> None:
        """End what an earlier life of this hub left of a server that is about to start anew.

        What the engine cannot end holds the new start up for RETIRE_LIMIT_S once, and not at all when that is known
        already: it stays quarantined with its GPUs, and whether the new claim can be had beside it is for `place`.
        """
        quarantined, waiting = self.quarantined(), []
        for lease in self.ledger().leases:
            if (lease.hub, lease.user, lease.server, lease.kind) != (self.hub, user, server, "server"):
                continue
            if lease.id in quarantined:
                LOG.warning("starting beside the quarantined lease=%s of user=%s", lease.id, user)
            elif lease.id not in self._reserved:
                LOG.warning("removing an earlier container of user=%s server=%s lease=%s", user, server, lease.id)
                waiting.append(self.endings.end(lease.id, EndCode.STOPPED))
            elif self.endings.leaves(lease.id):
                waiting.append(self.endings.abandon(lease.id))
        if waiting:
            await asyncio.wait(waiting, timeout=RETIRE_LIMIT_S)

    def stop_when_known(self, user: str, server: str) -> None:
        """End what a server turns out to have once the engine says so: it was stopped while nobody knew its container.

        What is granted later is another start's, and stays.
        """
        chore = partial(self._stop_unknown, user, server, self.clock())
        self.endings.chores.begin(("unknown", user, server), chore)

    async def _stop_unknown(self, user: str, server: str, stopped: datetime) -> None:
        while not self.engine.cache.fresh:  # noqa: ASYNC110 - the cache has no event for it
            await asyncio.sleep(KNOWN_STEP_S)
        for lease in self.ledger().leases:
            if (lease.hub, lease.user, lease.server, lease.kind) != (self.hub, user, server, "server"):
                continue
            if lease.granted <= stopped and lease.id not in self._reserved:
                LOG.warning("lease=%s of user=%s was stopped before it was known, and is ended now", lease.id, user)
                self.endings.end(lease.id, EndCode.STOPPED)

    # -- running ---------------------------------------------------------------------------------------------------

    async def begin(self, timeout_s: float) -> bool:
        """Follow the engine, rebuild the ledger from it and start the reaper; False if it did not answer yet."""
        self.engine.follow(self.endings.bury)
        self._ticker = asyncio.create_task(self._tick())
        if not await self.engine.listed(timeout_s):
            return False
        for container in self.engine.cache:
            # a start that the last hub process did not live to finish; even if the engine still does
            if container.state == "created" and self.endings.ours(container):
                self.abandon(container.labels[LABEL + "lease"])
        return True

    async def close(self) -> None:
        """Stop the reaper and wait for nothing: what is under way is found again by its labels."""
        if self._ticker:
            self._ticker.cancel()
        self.endings.chores.cancel()
        self.endings.steps.cancel()
        self.engine.close()

    def reap(self) -> None:
        """Remove what nobody owns and end what has reached its end; each in a task of its own."""
        now = self.clock()
        for container in self.engine.cache:
            lease_id = container.labels.get(LABEL + "lease", "")
            under_way = lease_id in self._reserved or lease_id in self.endings.steps or self.endings.leaves(lease_id)
            if under_way or not self.endings.ours(container):
                continue
            if container.state == "created":
                self.endings.discard(container)
            elif container.ended:
                self.endings.bury(container)
        ledger = self.ledger()
        conflicts = {lease_id for conflict in ledger.conflicts for lease_id in conflict.leases}
        for lease in ledger.leases:
            if lease.hub != self.hub or lease.id in self._reserved or self.endings.leaves(lease.id):
                continue
            if lease.expires <= now:
                self.endings.end(lease.id, EndCode.EXPIRED)
            elif lease.id not in conflicts and self._replaced(lease):
                LOG.warning("lease=%s of user=%s is ended: its server has a newer one", lease.id, lease.user)
                self.endings.end(lease.id, EndCode.STOPPED)

    def _replaced(self, lease: Lease) -> bool:
        """Whether a server runs in a newer container: what the last hub process could not end is still to end."""
        newest = self.find(lease.user, lease.server) if lease.kind == "server" else None
        return newest is not None and datetime.fromisoformat(newest.labels[LABEL + "granted"]) > lease.granted

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S if self.engine.cache.fresh else 1.0)
            if self.engine.cache.fresh:
                self.reap()

    def _of_server(self, user: str, server: str) -> list[Container]:
        wanted = {LABEL + "hub": self.hub, LABEL + "user": user, LABEL + "server": server, LABEL + "kind": "server"}
        return [c for c in self.engine.cache if wanted.items() <= c.labels.items()]

    def _wanted(self, lease_id: str) -> Lease:
        """Give a reservation that nobody has given up; the clearing must not meet a step that begins behind it."""
        lease = self._reserved.get(lease_id)
        if lease is None or self.endings.leaves(lease_id):
            raise RuntimeError(f"lease {lease_id} has been given up")
        return lease

    # -- steps, each in a task that a cancelled spawn cannot stop ------------------------------------------------------

    async def _create(self, lease: Lease, create: dict[str, Any]) -> dict[str, Any]:
        labels = to_labels(lease)
        try:
            made: dict[str, Any] = await self.engine.call("create_container", **(create | {"labels": labels}))
        except EngineSilent:
            self.endings.comes_late(lease.id)
            raise
        if self.engine.cache.get(made["Id"]) is None:  # else an event has told of it, and maybe of more
            self.engine.cache.put(
                Container(id=made["Id"], name=str(create.get("name", "")), state="created", labels=labels)
            )
        return made

    async def _start(self, lease_id: str, container_id: str) -> None:
        await self.engine.call("start", container_id)
        known = self.engine.cache.get(container_id)
        if known is not None and known.state == "created":
            self.engine.cache.put(replace(known, state="running"))
        if lease := self._reserved.pop(lease_id, None):
            self.observer.started(lease, container_id)
