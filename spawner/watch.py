"""The look at the GPUs that goes on while the hub runs: what there is, what it does, and what follows from that.

- Every few seconds, and at once when a server has ended, the driver is asked in a process of its own (nvml.py).
- GPUs that are not as an idle GPU is, or have somebody else's processes on them, are withheld (core/regrant.py).
- Of servers that share a GPU, the one that takes more than its share is warned and then loses its biggest process
  (core/shares.py). It is ended from the host, after it was made sure that the number still means the same process.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from spawner import nvml
from spawner.core import regrant
from spawner.core.ledger import Container, from_labels
from spawner.core.model import Lease, Mode, Node
from spawner.core.readings import Reading, container_of
from spawner.core.shares import Excess, Holder, Notice, NoticeCode, judge
from spawner.settings import GPUSettings

__all__ = ["Watch", "end_process"]

LOG = logging.getLogger(__name__)
PATIENCE_S = 8.0  # how long `settled` waits for a driver to free what an ended process had
PAUSE_S = 0.5
DOUBTED = "checking: it was not found when a server was to start"
_NOTICES_KEPT = 20
_SERVERS_KEPT = 1000


class Watch:
    """The GPUs of this machine as they are now.

    Parameters
    ----------
    settings
        How to ask, how often, and the levels.
    node_name
        The name of this machine.
    containers
        Gives the containers with leases, without waiting.
    held
        Gives the UUIDs that leases, reservations and orphans name.
    shares_of
        Into how many shares a GPU is divided, by its UUID; 0 where it is not shared.
    clock
        Time in UTC, of the same clock as the readings'.
    noticed
        Is told what the user of a server was told, and of which GPU; must neither raise nor wait.
    proc
        Where the processes are.
    """

    def __init__(
        self,
        settings: GPUSettings,
        *,
        node_name: str,
        containers: Callable[[], Iterable[Container]],
        held: Callable[[], Collection[str]],
        shares_of: Callable[[str], int],
        clock: Callable[[], datetime],
        noticed: Callable[[Lease, Notice, str], None] = lambda _lease, _notice, _gpu: None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.settings = settings
        self.node_name = node_name
        self.readings: Mapping[str, Reading] = {}
        self._containers = containers
        self._held = held
        self._shares_of = shares_of
        self._clock = clock
        self._noticed = noticed
        self._proc = proc
        self._found: Node | None = None
        self._trouble = ""
        self._ended: dict[str, datetime] = {}
        self._doubted: dict[str, datetime] = {}
        self._excesses: Sequence[Excess] = ()
        self._notices: dict[str, list[Notice]] = {}
        self._reading: asyncio.Task[bool] | None = None
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    # -- what is ---------------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The machine as placement sees it: GPUs that vanished are unhealthy, foreign processes are counted."""
        if self._found is None:  # the machine may serve without GPUs until somebody can tell of them
            return nvml.bare_machine(self.settings, self.node_name)
        owners = self._owners()
        return regrant.with_missing(regrant.with_foreign(self._found, self._foreign(owners)), owners)

    def shown(self) -> Node:
        """The machine as people are shown it: what is withheld is out of service, with the reason."""
        return regrant.out_of_service(self.node, self.withheld())

    def quarantined(self) -> dict[str, str]:
        """UUIDs that were not left as an idle GPU is, or that nobody has looked at since, each with the reason."""
        if self._found is None:
            return {}
        idle = self.settings.idle_memory
        found = regrant.quarantined(self._found, self.readings, self._held(), self._ended, idle)
        found |= dict.fromkeys(self._doubted, DOUBTED)
        if self._trouble:
            return {uuid: f"{reason} ({self._trouble})" for uuid, reason in found.items()}
        return found

    def withheld(self) -> dict[str, str]:
        """All UUIDs that must not be given away although no lease says so, foreign processes included."""
        strangers = self._foreign(self._owners())
        return {uuid: regrant.said(pids) for uuid, pids in strangers.items()} | self.quarantined()

    def notices(self, lease_id: str) -> tuple[Notice, ...]:
        """What the user of a server is to be told, oldest first."""
        return tuple(self._notices.get(lease_id, ()))

    # -- looking ---------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Look once, then go on looking."""
        await self.read()
        self._keeper = asyncio.create_task(self._keep())

    def close(self) -> None:
        """Look no more."""
        for task in (self._keeper, self._reading):
            if task is not None:
                task.cancel()

    def freed(self, container: Container) -> None:
        """Note that a container is gone, whoever removed it: what it held is looked at before it is given away."""
        gpus = regrant.holders([container])[container.id]
        self._ended.update(dict.fromkeys(gpus, self._clock()))
        if gpus:
            self._wake.set()

    def doubt(self, uuids: Iterable[str]) -> None:
        """Withhold GPUs that were not found when a server was to start, until a later look has seen them.

        That look is on the machine, so that a container's words, which its user can forge, make no GPU unhealthy.
        """
        now = dict.fromkeys(uuids, self._clock())
        self._doubted.update(now)
        self._ended.update(now)  # so that who starts next waits for that look
        if now:
            self._wake.set()

    async def read(self) -> bool:
        """Ask the driver, by a question that begins after this call; False where it does not answer."""
        if self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading])  # it began before: what it tells may be too old
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def settled(self, uuids: Collection[str] | None = None) -> None:
        """Wait, for a few seconds at most, until GPUs that were just given back can be given out again.

        So nobody is refused for stopping a server and starting the next at once. All GPUs, unless UUIDs are named.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self._settling(uuids):
                    if not await self.read():
                        return
                    if self._settling(uuids):
                        await asyncio.sleep(PAUSE_S)

    def _settling(self, uuids: Collection[str] | None) -> bool:
        now = self._clock()
        return any(
            uuid in self._ended and now - self._ended[uuid] < timedelta(seconds=PATIENCE_S)
            for uuid in self.quarantined()
            if uuids is None or uuid in uuids
        )

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.read_every):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.read()
            except Exception:  # a fault of ours must not end the looking: freed GPUs would stay withheld for good
                LOG.exception("the look at the GPUs failed")

    async def _read(self) -> bool:
        found = await nvml.ask(self.settings, self.node_name, known=self._found, proc=self._proc)
        if isinstance(found, nvml.InventoryFailure):
            if found.reason != self._trouble:
                LOG.error("the GPU inventory cannot be read, its last state stays: %s", found.reason)
            self._trouble = found.reason
            return False
        if found.reason and (self._found is None or self._found.gpus):
            LOG.warning("no GPUs: %s node=%s", found.reason, self.node_name)
        self._found, self.readings, self._trouble = found.node, found.readings, ""
        self._doubted = {
            uuid: since
            for uuid, since in self._doubted.items()
            if uuid not in self.readings or self.readings[uuid].at <= since
        }
        self._judge(found.node)
        return True

    def _owners(self) -> dict[str, frozenset[str]]:
        return regrant.holders(self._containers())

    def _foreign(self, owners: regrant.Holders) -> dict[str, tuple[int, ...]]:
        return regrant.foreign(self._found, self.readings, owners) if self._found is not None else {}

    # -- shares ----------------------------------------------------------------------------------------------------

    def _judge(self, node: Node) -> None:
        parts = {gpu.uuid: self._shares_of(gpu.uuid) for gpu in node.gpus}
        shares = {gpu.uuid: gpu.memory_bytes // parts[gpu.uuid] for gpu in node.gpus if parts[gpu.uuid]}
        verdict = judge(
            self.readings, self._sharing(), shares, before=self._excesses, grace_s=self.settings.share_grace
        )
        self._excesses = verdict.excesses
        for excess in verdict.warn:
            self._tell(NoticeCode.SHARE_EXCEEDED, excess)
        for excess in verdict.end:
            if end_process(excess.biggest.pid, excess.holder.container, proc=self._proc):
                self._tell(NoticeCode.SHARE_ENDED, excess)

    def _sharing(self) -> Iterable[Holder]:
        for container in self._containers():
            with suppress(ValueError):  # an orphan: nobody knows what it may use
                lease = from_labels(container.labels)
                if lease.mode is Mode.SHARED:
                    yield Holder(container=container.id, lease=lease)

    def _tell(self, code: NoticeCode, excess: Excess) -> None:
        lease = excess.holder.lease
        params: dict[str, str | int | float] = {
            "used": excess.used_bytes,
            "share": excess.share_bytes,
            "pid": excess.biggest.pid,
            "process": excess.biggest.memory_bytes or 0,
            "grace": self.settings.share_grace,
        }
        notice = Notice(lease=lease.id, code=code, at=self._clock(), params=tuple(sorted(params.items())))
        kept = self._notices.setdefault(lease.id, [])
        kept.append(notice)
        del kept[:-_NOTICES_KEPT]
        while len(self._notices) > _SERVERS_KEPT:
            del self._notices[next(iter(self._notices))]
        self._noticed(lease, notice, excess.gpu)


def end_process(pid: int, container: str, *, proc: Path = Path("/proc")) -> bool:
    """Kill a process if it still is one of a container's; True if it was killed."""
    try:
        handle = os.pidfd_open(pid)  # from here on the number cannot come to mean another process unseen
    except OSError:
        return False
    try:
        if not container or container_of((proc / str(pid) / "cgroup").read_text(encoding="utf-8")) != container:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
