"""The hub's figures at JupyterHub's own `/hub/metrics`: who may read them is JupyterHub's scope `read:metrics`.

Everything is read from the runtime at the moment of the scrape, on the event loop: nothing is asked, waited for or
locked. A runtime that has not begun has no figures, and a fault in them costs the figures, not the scrape.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import wraps
from typing import TypeVar

from prometheus_client import REGISTRY, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from spawner import runtime
from spawner.arbiter import Refused
from spawner.core.model import GPU, Lease, MIGInstance, Mode, Node
from spawner.runtime import Runtime

__all__ = ["HubCollector", "States", "publish", "timed"]

LOG = logging.getLogger(__name__)
STATES = ("free", "leased", "shared", "split", "closed", "quarantined", "unhealthy")
T = TypeVar("T")
S = TypeVar("S")


class States:
    """In which of STATES a GPU or a MIG instance is.

    The first that fits counts: unhealthy; leased or shared, which an operator's `cordon` does not change; closed;
    quarantined, for whatever else keeps it from being given away. A GPU that is split by MIG is `split`, and its
    instances have states of their own.

    Parameters
    ----------
    leases
        All that the engine has, those of other hubs included.
    closed
        GPUs and nodes that the operator has closed.
    withheld
        UUIDs that must not be given away although no readable lease says so.
    """

    def __init__(self, leases: Iterable[Lease], *, closed: Collection[str], withheld: Collection[str]) -> None:
        self._held = {uuid: lease.mode for lease in leases for uuid in lease.gpus}
        self._closed = closed
        self._withheld = withheld

    def of_gpu(self, node: Node, gpu: GPU) -> str:
        """Tell the state of a GPU."""
        if not gpu.unhealthy and (gpu.mig_enabled or gpu.mig):
            return "split"
        return self._of((gpu.uuid,), node, gpu)

    def of_instance(self, node: Node, gpu: GPU, part: MIGInstance) -> str:
        """Tell the state of an instance; what stands against its GPU stands against it."""
        return self._of((part.uuid, gpu.uuid), node, gpu)

    def _of(self, uuids: tuple[str, ...], node: Node, gpu: GPU) -> str:
        modes = [self._held[uuid] for uuid in uuids if uuid in self._held]
        if gpu.unhealthy:
            return "unhealthy"
        if modes:
            return "shared" if modes[0] is Mode.SHARED else "leased"
        if any(name in self._closed for name in (*uuids, node.name)):
            return "closed"
        return "quarantined" if any(uuid in self._withheld for uuid in uuids) else "free"


class HubCollector(Collector):
    """Gives the figures to whoever scrapes; never raises and never waits."""

    def __init__(self, current: Callable[[], Runtime | None] = runtime.current_or_none) -> None:
        self._current = current

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: nobody shall read the runtime before it has begun."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read the runtime."""
        try:
            shared = self._current()
            found = () if shared is None else (*_gauges(shared), *shared.figures.collect())
        except Exception:  # a fault of ours must not cost the operator JupyterHub's own figures
            LOG.exception("the figures cannot be read")
            return
        yield from found


def publish(registry: CollectorRegistry = REGISTRY) -> None:
    """Add the figures to those that JupyterHub shows."""
    registry.register(HubCollector())


def timed(start: Callable[[S], Awaitable[T]]) -> Callable[[S], Awaitable[T]]:
    """Time a spawner's start: ready, refused, failed, or cancelled (by Stop or by the hub's time limit)."""

    @wraps(start)
    async def run(spawner: S) -> T:
        began, outcome = time.monotonic(), "failed"
        try:
            answer = await start(spawner)
            outcome = "ready"
            return answer
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:
            outcome = "refused" if isinstance(error.__cause__, Refused) else "failed"
            raise
        finally:
            if shared := runtime.current_or_none():
                shared.figures.started(outcome, time.monotonic() - began)

    return run


def _gauges(shared: Runtime) -> Iterator[Metric]:
    ledger, node = shared.arbiter.ledger(), shared.watch.node
    withheld = ledger.withheld | set(shared.watch.withheld())
    states = States(ledger.leases, closed=shared.cordons.closed, withheld=withheld)
    yield from _gpus(node, states)
    ours = [lease for lease in ledger.leases if lease.hub == shared.settings.hub.name]
    modes = Counter(lease.mode for lease in ours)
    leases = GaugeMetricFamily("gpucampus_leases", "What this hub's servers hold, starts included.", labels=["mode"])
    for mode in Mode:
        leases.add_metric([mode.value], modes[mode])
    yield leases
    for name, text, value in (
        (
            "leases_quarantined",
            "Leases that the engine was told to end and did not.",
            len(shared.arbiter.quarantined()),
        ),
        ("orphans", "Containers that cannot be read as a lease and keep their GPUs.", len(ledger.orphans)),
        ("lease_conflicts", "GPUs that more than one lease names.", len(ledger.conflicts)),
        ("engine_answers", "Whether the container engine answered last (1) or not (0).", shared.engine.cache.fresh),
    ):
        yield GaugeMetricFamily(f"gpucampus_{name}", text, value=value)


def _gpus(node: Node, states: States) -> Iterator[Metric]:
    gpus = GaugeMetricFamily("gpucampus_gpus", "GPUs by state.", labels=["node", "model", "state"])
    parts = GaugeMetricFamily(
        "gpucampus_mig_instances", "MIG instances by state.", labels=["node", "model", "profile", "state"]
    )
    found = Counter((gpu.name, states.of_gpu(node, gpu)) for gpu in node.gpus)
    for model in sorted({gpu.name for gpu in node.gpus}):
        for state in STATES:  # all of them: a state that nobody is in is 0, not absent
            gpus.add_metric([node.name, model, state], found[model, state])
    split = Counter(
        (gpu.name, part.profile, states.of_instance(node, gpu, part)) for gpu in node.gpus for part in gpu.mig
    )
    for model, profile in sorted({(gpu.name, part.profile) for gpu in node.gpus for part in gpu.mig}):
        for state in STATES:
            if state not in ("split", "shared"):
                parts.add_metric([node.name, model, profile, state], split[model, profile, state])
    yield gpus
    yield parts
