"""The process-wide parts: settings, engine, arbiter, inventory, homes and records, made at first use.

The spawner objects come and go with their servers; what must exist once a process lives here.
"""

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spawner import routes
from spawner.arbiter import Arbiter
from spawner.audit import AuditLog, Auditor, RecordsWriter
from spawner.cordons import Cordons
from spawner.core import catalog as catalogs
from spawner.core import regrant
from spawner.core.disks import Disk
from spawner.core.ledger import foreign_labels
from spawner.core.model import Code, Lease, Node, Person, PlacementRules, Refusal, Variant
from spawner.core.shares import Notice
from spawner.disk import DiskWatch, Places, in_containers, writers_of
from spawner.docker_api import Engine, EngineRefuses, EngineUnknown, prepare_host
from spawner.figures import Figures
from spawner.injection import injection_for
from spawner.messages import sentence
from spawner.netguard import NetworkGuard, build_filter
from spawner.private_files import ensure_secret
from spawner.records import TROUBLE, Records
from spawner.settings import Settings, load
from spawner.storage import Storage
from spawner.trust import ImageTrust
from spawner.watch import Watch

__all__ = ["Runtime", "current", "current_or_none", "get", "prepare"]

LOG = logging.getLogger(__name__)
BEGIN_TIMEOUT_S = 10.0
KEEP_S = 30.0
FORGET_S = 86_400.0
UNREADABLE = "held by a container that cannot be read as a server"


class Runtime:
    """Everything that the hub's process shares."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog = catalogs.parse(settings.catalog.read_text(encoding="utf-8"))
        self.roles = settings.entitlement_roles()
        self.figures = Figures()
        self.engine = Engine(called=self.figures.called)
        self.injection = injection_for(settings.gpus)
        self.records = Records.open(f"sqlite:///{settings.state / 'records.sqlite'}")
        self.storage = Storage(
            settings.homes.root, bytes.fromhex(ensure_secret(settings.state / "secrets" / "marker_key"))
        )
        self.cordons = Cordons(self.records.cordons)
        self.trust = ImageTrust(settings.state, settings.images)
        self.network = NetworkGuard(settings)
        self._writer = RecordsWriter()
        self.audit = Auditor(
            AuditLog(settings.state / "log" / "audit.jsonl"),
            self.records,
            self._writer,
            hub=settings.hub.name,
            network=settings.network.name,
        )
        self.arbiter = Arbiter(
            self.engine,
            hub=settings.hub.name,
            nodes=lambda: (self.node,),
            clock=lambda: datetime.now(UTC),
            new_id=lambda: uuid.uuid4().hex[:16],
            observer=self.audit,
            rules=self._rules,
        )
        self.watch = Watch(
            settings.gpus,
            node_name=socket.gethostname(),
            containers=lambda: self.engine.cache,
            held=self._held,
            shares_of=settings.placement_rules(closed=frozenset(), quarantined=frozenset()).shares_of,
            clock=lambda: datetime.now(UTC),
            noticed=self._noticed,
        )
        self.engine.cache.on_drop = self.watch.freed
        self._places = Places(settings.state, settings.homes.root)
        self.disks = DiskWatch(self._places, data_root=self._data_root, writers=self._writers_on)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def node(self) -> Node:
        """The machine and its GPUs, as placement sees them."""
        return self.watch.node

    async def begin(self) -> None:
        """Rebuild the ledger from the engine, look at the GPUs and read what is closed; before the first start."""
        if not await self.arbiter.begin(BEGIN_TIMEOUT_S):
            LOG.error(
                "the container engine does not answer; servers count as running and nothing is started until it does"
            )
        if refusal := await self.storage.prepare():
            LOG.error("%s", sentence(refusal))
        await self.watch.begin()
        self.disks.begin()
        await self.cordons.refresh()
        self.repair_history()
        await self._resume_endings()
        self._keeper = asyncio.create_task(self._keep())
        self.network.begin()
        if self.settings.gpus.simulated:
            LOG.warning("GPUs are SIMULATED: %d of them, and no real one is behind this hub", len(self.node.gpus))
        ledger = self.arbiter.ledger()
        for conflict in ledger.conflicts:
            LOG.error("gpu=%s is held by more than one lease: %s", conflict.gpu, ", ".join(conflict.leases))
        for orphan in ledger.orphans:
            LOG.error("container %s cannot be read as a lease and keeps its GPUs: %s", orphan.name, orphan.why)
        LOG.info("%d leases on the engine", len(ledger.leases))

    async def close(self) -> None:
        """End the background work; containers stay as they are."""
        if self._keeper:
            self._keeper.cancel()
        self.watch.close()
        self.network.close()
        self.disks.close()
        await self.arbiter.close()
        await asyncio.to_thread(self._writer.close)
        self.records.close()

    def shown(self) -> Node:
        """The machine as people are shown it: what is withheld or closed is out of service, with the reason."""
        node, closed = self.watch.shown(), self.cordons.closed
        targets = closed.union(gpu.uuid for gpu in node.gpus) if node.name in closed else closed
        orphans = dict.fromkeys(self.arbiter.ledger().withheld, UNREADABLE)
        return regrant.out_of_service(node, orphans | dict.fromkeys(targets, "closed by the operator"))

    def repair_history(self) -> None:
        """Fill in what the history lacks, once the engine has answered."""
        if self.engine.cache.fresh:
            self.audit.repair(self.arbiter.ledger().leases, self.engine.cache)

    async def _resume_endings(self) -> None:
        """Go on with what the last hub process had told the engine to end, and the engine had not done."""
        try:
            async with asyncio.timeout(BEGIN_TIMEOUT_S):
                unended = await asyncio.to_thread(self.records.open_leases, self.settings.hub.name)
        except TROUBLE as error:
            LOG.error("what was quarantined before is not known, the records do not answer: %s", error)  # noqa: TRY400
            return
        self.arbiter.endings.resume({past.lease: past.quarantine for past in unended if past.quarantine})

    async def image_of(self, variant: Variant) -> str | Refusal:
        """The id of a variant's image, or why no server can run from it; EngineUnknown when the engine does not answer.

        An image's labels become its containers' labels, so that one which carries ours could pretend to a lease.
        """
        found = await self.engine.image(variant.image)
        if found is None:
            return Refusal.of(Code.VARIANT_NOT_BUILT, variant=variant.name)
        if forged := foreign_labels(found.labels, variant.name):
            LOG.error("the image %s carries the label %s and is not used", variant.image, forged[0])
            return Refusal.of(Code.IMAGE_LABELS, variant=variant.name, label=forged[0])
        return self.trust.refusal(variant, found.id, found.digests) or found.id

    async def images(self) -> Mapping[str, str | Refusal]:
        """What image_of says of each variant, by name."""
        found = await asyncio.gather(*(self.image_of(variant) for variant in self.catalog.variants))
        return {variant.name: image for variant, image in zip(self.catalog.variants, found, strict=True)}

    async def built_images(self) -> Mapping[str, str]:
        """Ids of the images that can be used here, by variant; EngineUnknown when the engine does not answer."""
        return {name: image for name, image in (await self.images()).items() if not isinstance(image, Refusal)}

    async def person(self, hub_name: str, sub: str) -> Person | Refusal:
        """Find the person of a hub account, or make their record when they first start a server.

        `sub` is empty where nobody has signed in with this account yet and an administrator starts for them.
        """
        if not sub:
            known = await asyncio.to_thread(self.records.person_by_name, hub_name)
            return known or Refusal.of(Code.PERSON_UNKNOWN, name=hub_name)
        taken: Collection[int] = ()
        if await asyncio.to_thread(self.records.person_by_sub, sub) is None:
            # the database may have been lost: the marker in a home knows better than a new number
            homes = await self.storage.survey()
            if isinstance(homes, Refusal):
                return homes
            for person in homes.persons:
                if person.sub == sub:
                    await asyncio.to_thread(self.records.learn, person)
                    LOG.info("user=%s has uid=%d again, by the marker in the home", hub_name, person.uid)
            taken = homes.uids
        homes_range = range(self.settings.homes.uid_min, self.settings.homes.uid_max + 1)
        return await asyncio.to_thread(self.records.assign, sub, hub_name, homes_range, taken)

    async def _data_root(self) -> Path | None:
        """Where the engine keeps images and containers; None while it does not say."""
        with suppress(EngineUnknown, EngineRefuses):
            return Path((await self.engine.call("info"))["DockerRootDir"])
        return None

    async def _writers_on(self, disk: Disk) -> str:
        """Who takes most of a disk; sizes of containers take the engine a while."""

        async def containers() -> str:
            with suppress(EngineUnknown, EngineRefuses):
                return in_containers(await self.engine.call("containers", all=True, size=True, lane="slow", limit_s=20))
            return ""

        return await writers_of(self._places, disk, containers)

    async def _keep(self) -> None:
        forget_at = 0.0
        while True:
            if time.monotonic() >= forget_at:
                forget_at = time.monotonic() + FORGET_S
                self.audit.forget(datetime.now(UTC) - timedelta(seconds=self.settings.records.keep_history))
            await asyncio.sleep(KEEP_S)
            await self.cordons.refresh()
            self.repair_history()
            await self.network.tend()

    def _rules(self) -> PlacementRules:
        return self.settings.placement_rules(
            closed=self.cordons.closed, quarantined=frozenset(self.watch.quarantined())
        )

    def refused(self, user: str, server: str, refusal: Refusal) -> None:
        """Note that a start was turned down."""
        self.audit.refused(user, server, refusal)
        self.figures.refused(refusal.code.value)

    def _noticed(self, lease: Lease, notice: Notice, gpu: str) -> None:
        self.audit.noticed(lease, notice, gpu)
        self.figures.noticed(notice.code.value)

    def _held(self) -> frozenset[str]:
        ledger = self.arbiter.ledger()
        return ledger.withheld.union(*(lease.gpus for lease in ledger.leases))


_runtime: asyncio.Task[Runtime] | None = None
_begun: asyncio.Task[Runtime] | None = None


async def get() -> Runtime:
    """Give the runtime, made and begun at the first call."""
    global _runtime  # noqa: PLW0603 - one for each process is the point
    if _runtime is None or (_runtime.done() and _runtime.exception() is not None):
        _runtime = asyncio.create_task(_make())
    return await asyncio.shield(_runtime)


def _begin_soon() -> None:
    """Begin beside the hub's own start, so that the first person does not wait for it; needs a running event loop."""
    global _begun  # noqa: PLW0603 - a task that nobody holds may be collected
    try:
        _begun = asyncio.get_running_loop().create_task(get())
    except RuntimeError:  # a command such as `jupyterhub upgrade-db` reads the configuration only
        return


def current() -> Runtime:
    """Give the runtime where it is known to have begun; RuntimeError otherwise."""
    if _runtime is None or not _runtime.done():
        raise RuntimeError("the runtime has not begun")
    return _runtime.result()


def current_or_none() -> Runtime | None:
    """Give the runtime if it has begun."""
    if _runtime is None or not _runtime.done() or _runtime.cancelled() or _runtime.exception() is not None:
        return None
    return _runtime.result()


def prepare(settings: Settings) -> None:
    """Make engine and process ready before the hub starts; SystemExit in one line where it can never serve us."""
    logging.getLogger("spawner").parent = logging.getLogger("JupyterHub")  # our lines go where the hub's go
    network = settings.network
    if said := routes.obstacle(network.subnet, network.bridge, network.denied):
        raise SystemExit(f"gpucampus: {said}")
    try:
        prepare_host(network.name, network.bridge, network.subnet)
    except EngineRefuses as error:
        raise SystemExit(f"gpucampus: {error}") from error
    except EngineUnknown as error:
        # servers may be running all the same: start, and treat them as unknown
        LOG.error("the container engine does not answer: %s", error)  # noqa: TRY400 - for the operator, no traceback
    build_filter(settings)
    _begin_soon()


async def _make() -> Runtime:
    runtime = Runtime(await asyncio.to_thread(load))
    await runtime.begin()
    return runtime
