"""The process-wide parts: settings, engine, arbiter, inventory, homes and records, made at first use.

The spawner objects come and go with their servers; what must exist once a process lives here.
"""

import asyncio
import logging
import secrets
import socket
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from spawner.arbiter import Arbiter
from spawner.core import catalog as catalogs
from spawner.core.model import Code, Node, Person, Refusal
from spawner.docker_api import Engine, EngineRefuses, EngineUnknown, prepare_host
from spawner.injection import injection_for
from spawner.messages import sentence
from spawner.nvml import InventoryFailure, read_inventory
from spawner.records import Records
from spawner.settings import Settings, load
from spawner.storage import Storage

__all__ = ["Runtime", "current", "current_or_none", "get", "prepare"]

LOG = logging.getLogger(__name__)
BEGIN_TIMEOUT_S = 10.0
INVENTORY_S = 30.0


class Runtime:
    """Everything that the hub's process shares."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog = catalogs.parse(settings.catalog.read_text(encoding="utf-8"))
        self.roles = settings.entitlement_roles()
        self.engine = Engine()
        self.injection = injection_for(settings.gpus)
        self.records = Records.open(f"sqlite:///{settings.state / 'records.sqlite'}")
        self.storage = Storage(settings.homes.root, _secret(settings.state / "secrets" / "marker_key"))
        self.node = Node(name="", simulated=settings.gpus.simulated)
        self._trouble = ""
        self.arbiter = Arbiter(
            self.engine,
            hub=settings.hub.name,
            nodes=lambda: (self.node,),
            clock=lambda: datetime.now(UTC),
            new_id=lambda: uuid.uuid4().hex[:16],
        )
        self._images: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Rebuild the ledger from the engine, read the inventory and learn persons; before the first start."""
        if not await self.arbiter.begin(BEGIN_TIMEOUT_S):
            LOG.error(
                "the container engine does not answer; servers count as running and nothing is started until it does"
            )
        if refusal := await self.storage.prepare():
            LOG.error("%s", sentence(refusal))
        await self.refresh_inventory()
        self._tasks.append(asyncio.create_task(self._keep_inventory()))
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
        for task in self._tasks:
            task.cancel()
        await self.arbiter.close()
        self.records.close()

    async def refresh_inventory(self) -> None:
        """Read the GPUs; where they cannot be read the last known state stays."""
        known = self.node if self.node.gpus else None
        found = await read_inventory(self.settings.gpus, socket.gethostname(), known=known)
        if isinstance(found, InventoryFailure):
            if found.reason != self._trouble:
                LOG.error("the GPU inventory cannot be read, its last state stays: %s", found.reason)
            self._trouble = found.reason
        else:
            self.node, self._trouble = found, ""

    async def built_images(self) -> Mapping[str, str]:
        """Ids of the images that exist here, by variant; EngineUnknown when the engine does not answer."""
        found = await asyncio.gather(*(self.engine.image_id(variant.image) for variant in self.catalog.variants))
        return {variant.name: image for variant, image in zip(self.catalog.variants, found, strict=True) if image}

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
            homes, uids = await self.storage.known_homes(), await self.storage.taken_uids()
            if isinstance(homes, Refusal) or isinstance(uids, Refusal):
                return homes if isinstance(homes, Refusal) else uids  # type: ignore[return-value] # one of them is
            for person in homes:
                if person.sub == sub:
                    await asyncio.to_thread(self.records.learn, person)
                    LOG.info("user=%s has uid=%d again, by the marker in the home", hub_name, person.uid)
            taken = uids
        homes_range = range(self.settings.homes.uid_min, self.settings.homes.uid_max + 1)
        return await asyncio.to_thread(self.records.assign, sub, hub_name, homes_range, taken)

    async def _keep_inventory(self) -> None:
        while True:
            await asyncio.sleep(INVENTORY_S)
            await self.refresh_inventory()


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
    return _runtime.result() if _runtime is not None and _runtime.done() and _runtime.exception() is None else None


def prepare(settings: Settings) -> None:
    """Make engine and process ready before the hub starts; SystemExit in one line where it can never serve us."""
    logging.getLogger("spawner").parent = logging.getLogger("JupyterHub")  # our lines go where the hub's go
    network = settings.network
    try:
        prepare_host(network.name, network.bridge, network.subnet)
    except EngineRefuses as error:
        raise SystemExit(f"gpucampus: {error}") from error
    except EngineUnknown as error:
        # servers may be running all the same: start, and treat them as unknown
        LOG.error("the container engine does not answer: %s", error)  # noqa: TRY400 - for the operator, no traceback
    _begin_soon()


async def _make() -> Runtime:
    runtime = Runtime(await asyncio.to_thread(load))
    await runtime.begin()
    return runtime


def _secret(path: Path) -> bytes:
    """Read a key, or make it at the first start."""
    try:
        return bytes.fromhex(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = secrets.token_bytes(32)
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(key.hex(), encoding="ascii")
        return key
