"""GPUDockerSpawner: JupyterHub's view of a server. Traits and hooks only; rules are in core, acts are the arbiter's.

The parent builds a container's arguments and drives create, start, stop and remove through `docker()`; here those four
go to the arbiter, and everything else to the engine's lanes. What a container must have (limits, user, mounts, GPUs) is
laid over the parent's arguments last, so that neither an image nor a loose trait can take it away.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dockerspawner import DockerSpawner
from jupyterhub.spawner import SpawnException
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from traitlets import default

from spawner import campus, container, runtime
from spawner.arbiter import Refused
from spawner.claims import checked, claim_for
from spawner.core.entitlements import entitlement_for
from spawner.core.health import DOUBTFUL
from spawner.core.ledger import LABEL
from spawner.core.model import Claim, Code, Person, Refusal
from spawner.core.names import server_slug
from spawner.core.options import from_form
from spawner.docker_api import EngineRefuses, EngineSaysGone, EngineUnknown
from spawner.form import render_form, render_refusal, spawn_view
from spawner.injection import Injected
from spawner.messages import Language, Phase, ended, notice
from spawner.metrics import timed
from spawner.progress import Progress
from spawner.refusals import NOT_DONE, died, refusal_for, said
from spawner.runtime import Runtime
from spawner.storage import write_identity

__all__ = ["GPUDockerSpawner"]

PORT_STEP_S = 0.05
CHECK_STEP_S = 1.0
FOR_EVER_S = 86_400.0
_ANSWERED = frozenset(range(200, 500))  # any answer of the server itself; 5xx may be somebody else's


class GPUDockerSpawner(DockerSpawner):
    """A server in a container that holds exactly the GPUs of its lease."""

    _check_pending: bool  # the parent's, which has no types
    _spawn_future: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lease_id = ""
        self._sub = ""
        self._idle_s = 0
        self._image = ""
        self._claim: Claim | None = None
        self._person: Person | None = None
        self._injected = Injected()
        self._gpus: tuple[str, ...] = ()
        self._restored = False
        self._accepted: dict[str, Any] = dict(self.user_options or {})
        self._progress = Progress()

    # -- what is fixed here, as values of the parent's traits ------------------------------------------------------

    @default("remove")
    def _default_remove(self) -> bool:
        return True

    @default("pull_policy")
    def _default_pull_policy(self) -> str:
        return "never"  # servers run by image id; a digest reference breaks the parent's pull

    @default("use_internal_ip")
    def _default_use_internal_ip(self) -> bool:
        return True

    @default("cmd")
    def _default_cmd(self) -> list[str]:
        return ["jupyterhub-singleuser"]

    @default("options_form")
    def _default_options_form(self) -> Callable[..., Awaitable[str]]:
        return type(self).show_form

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[..., dict[str, object]]:
        return from_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[..., Awaitable[None]]:
        return type(self).choose

    # -- choosing --------------------------------------------------------------------------------------------------

    async def show_form(self) -> str:
        """Render the choices of this person's role, as things are now."""
        shared = await runtime.get()
        language = shared.settings.hub.language
        groups = [group.name for group in self.user.groups]
        entitlement = entitlement_for(groups, shared.roles)
        if isinstance(entitlement, Refusal):
            return render_refusal(entitlement, language)
        if full := shared.disks.refusal():
            return render_refusal(full, language)
        try:
            images = await shared.images()
        except (EngineUnknown, EngineRefuses):
            return render_refusal(Refusal.of(Code.ENGINE_UNKNOWN), language)
        ledger = shared.arbiter.ledger()
        view = spawn_view(
            shared.catalog.variants,
            images,
            entitlement,
            shared.shown(),
            ledger.leases,
            previous=self._accepted,
            user=self.user.name,
            withheld=ledger.withheld | set(shared.watch.withheld()),
            rules=shared.arbiter.rules(),
        )
        return render_form(view, language)

    def options_from_query(self, query_data: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - the hub's signature
        """Refuse: a link must never start anything, least of all a GPU."""
        raise said(Refusal.of(Code.NOT_CHOSEN), self._language())

    async def choose(self, user_options: dict[str, Any]) -> None:
        """Validate the choice and keep it for `start`; a refused one is not remembered."""
        shared = await runtime.get()
        try:
            groups = [group.name for group in self.user.groups]
            self._claim, self._image = await claim_for(shared, self.user.name, self.name, groups, user_options)
        except (Refused, EngineUnknown) as error:
            # the hub has stored the options before it asked; put back what was there
            self.user_options = self._accepted
            self.orm_spawner.user_options = self._accepted
            self.user.db.commit()
            raise self._turned_down(shared, error) from None
        self._accepted = dict(user_options)
        self._idle_s = self._claim.entitlement.idle_s
        self._tell(Phase.CHECKED, variant=self._claim.variant.title, memory=self._claim.limits.memory_bytes)

    async def run_auth_state_hook(self, auth_state: dict[str, Any] | None) -> None:
        """Keep the identifier that never changes, then run the configured hook."""
        self._sub = str(((auth_state or {}).get("oauth_user") or {}).get("sub", ""))
        await super().run_auth_state_hook(auth_state)

    # -- starting and stopping -------------------------------------------------------------------------------------

    @timed
    async def start(self) -> tuple[str, int]:
        """Make home and container and wait until JupyterLab answers; on any failure the arbiter clears up."""
        shared = await runtime.get()
        self._restored = False
        try:
            if self._claim is None:
                raise Refused(Refusal.of(Code.OPTION_TYPE, option="options", allowed="{}"))
            self._person = checked(await shared.person(self.user.name, self._sub))
            checked(await shared.storage.ensure_home(self._person))
            self._tell(Phase.HOME)
            self.image = self._image
            self.mem_limit, self.cpu_limit = self._claim.limits.memory_bytes, self._claim.limits.cpus
            self.network_name = shared.settings.network.name
            ip, port = await super().start()
            await self._wait_for_answer(shared, f"http://{ip}:{port}" if ip else "")
        except BaseException as error:
            self._give_up(shared)
            if isinstance(error, NOT_DONE):
                if refusal_for(error).code is Code.GPU_GONE:
                    shared.watch.doubt(self._gpus)
                self.log.warning("Not started user=%s server=%s: %s", self.user.name, self.name, error)
                raise self._turned_down(shared, error) from error
            raise
        self._tell(Phase.ANSWERS)
        return ip, port

    async def create_object(self) -> dict[str, Any]:
        """Reserve, then let the parent build and create the container."""
        shared = await runtime.get()
        claim = self._claim
        if claim is None:
            raise Refused(Refusal.of(Code.OPTION_TYPE, option="options", allowed="{}"))
        await shared.arbiter.retire(claim.user, claim.server)
        await shared.cordons.refresh()
        if claim.gpus:
            await shared.watch.settled()
        lease = shared.arbiter.reserve(claim, image=self._image)
        self.lease_id = lease.id
        self.object_name = f"gpucampus-{self.user.name}-{server_slug(self.name)}-{lease.id}"
        self._gpus = lease.gpus
        self._injected = shared.injection.inject(lease.gpus, shared.node)
        self._tell(Phase.PLACED, gpus=len(lease.gpus), simulated=" (simulated)" if shared.node.simulated else "")
        return await super().create_object()  # type: ignore[no-any-return] # the parent is untyped

    async def stop(self, now: bool = False) -> None:
        """Stop and remove the container, as by hand.

        What the engine does not do in time is left to the arbiter: the lease is quarantined, the server counts as
        stopped, and its person can start again.
        """
        if not self.object_id:
            if self._restored:
                (await runtime.get()).arbiter.stop_when_known(self.user.name, self.name)
            return
        try:
            await super().stop(now=now)
        except (EngineUnknown, EngineRefuses) as error:
            self.log.error("%s did not stop and is quarantined, lease=%s: %s", self._log_name, self.lease_id, error)  # noqa: TRY400 - for the operator, no traceback
            self.clear_state()

    def docker(self, method: str, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Send the parent's calls to the arbiter or to the engine's lanes."""
        return self._docker_call(method, *args, **kwargs)

    async def _docker_call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        shared = await runtime.get()
        arbiter = shared.arbiter
        if method == "create_container":
            made = await arbiter.create(self.lease_id, **(kwargs | self._create_arguments()))
            arbiter.tell(self.lease_id, self._lease_ended)
            self._tell(Phase.CREATED)
            return made
        if method == "start":
            await arbiter.start(self.lease_id, self.object_id)
            self._tell(Phase.STARTED)
            return None
        if method == "stop":
            return await arbiter.stop(self.lease_id, self.object_id, shared.settings.containers.stop_timeout)
        if method == "remove_container":
            return await arbiter.remove(self.lease_id, self.object_id)
        return await shared.engine.raw(method, *args, **kwargs)

    @property
    def client(self) -> Any:
        """What the parent builds host configs with: ours is laid over its own."""
        return container.HostConfigs(self._host_config)

    def _host_config(self, from_parent: Mapping[str, Any]) -> Any:
        shared, claim, person = runtime.current(), self._claim, self._person
        assert claim is not None and person is not None  # noqa: S101, PT018 - start() has set them
        identity = write_identity(shared.settings.state / "people", person)
        parts = container.host_config(
            claim.limits,
            person,
            home=str(shared.settings.homes.root / person.home),
            identity=(str(identity[0]), str(identity[1])),
            injected=self._injected,
            with_gpus=claim.gpus > 0,
        )
        mounts = [*from_parent.get("mounts", []), *parts.pop("mounts")]
        mounts += container.certificates(shared.settings.campus.values(), shared.settings.state)
        return shared.engine.host_config(**(dict(from_parent) | parts | {"mounts": mounts}))

    def _create_arguments(self) -> dict[str, Any]:
        assert self._person is not None  # noqa: S101 - start() has set it
        return container.create_arguments(self._person, name=self.object_name)

    def get_env(self) -> dict[str, Any]:
        """Build the environment; what bends a GPU grant or an identity is written last."""
        env: dict[str, Any] = super().get_env()
        if self._person is not None:
            settings = runtime.current().settings
            env |= campus.inside(settings.campus.values(), settings.network.subnet)
            env |= container.environment(self._person, self._injected, self._gpus)
        return env

    async def get_ip_and_port(self) -> tuple[str, int]:
        """Where the server is; no address where its container has ended, and may be gone, by now."""
        shared = await runtime.get()
        try:
            return await shared.engine.address(self.object_id, shared.settings.network.name), self.port
        except EngineSaysGone:
            return "", self.port

    async def _wait_for_answer(self, shared: Runtime, address: str) -> None:
        """Ask in short steps until the server answers, and notice at once when it died.

        GPUs that its own check did not find are looked at on the machine before anybody else is given them.
        """
        deadline = time.monotonic() + shared.settings.containers.start_timeout
        while not (address and await self._answers(address)):
            if end := shared.arbiter.end_of(self.lease_id):
                if end.code in DOUBTFUL:
                    shared.watch.doubt(self._gpus)
                self.log.warning("Ended user=%s server=%s: %s", self.user.name, self.name, end)
                raise died(end, shared.settings.hub.language)
            if time.monotonic() > deadline:
                raise Refused(Refusal.of(Code.NOT_ANSWERING, seconds=shared.settings.containers.start_timeout))
            await asyncio.sleep(PORT_STEP_S)

    async def _answers(self, address: str) -> bool:
        url = f"{address}{self.server.base_url}api"
        try:
            answer = await AsyncHTTPClient().fetch(url, connect_timeout=2, request_timeout=5, raise_error=False)
        except (OSError, HTTPClientError):
            return False
        return answer.code in _ANSWERED

    def _give_up(self, shared: Runtime) -> None:
        if self.lease_id:
            shared.arbiter.abandon(self.lease_id)
        self.lease_id = self.object_id = ""

    # -- what is -----------------------------------------------------------------------------------------------------

    async def poll(self) -> int | str | None:
        """Whether the server runs: None, also when the engine cannot tell, else a sentence that says why it ended."""
        with self._stoppable():
            shared = await runtime.get()
        if not self.lease_id and self._restored:
            self._adopt(shared)
        if not self.lease_id:
            return None if self._restored and not shared.engine.cache.fresh else 0
        end = shared.arbiter.end_of(self.lease_id)
        if end is None:
            shared.arbiter.tell(self.lease_id, self._lease_ended)
        return None if end is None else ended(end, shared.settings.hub.language)

    async def get_object(self) -> dict[str, Any] | None:
        """Inspect our container; only a 404 means that there is none, any other trouble changes nothing."""
        shared = await runtime.get()
        return await shared.engine.inspect(self.object_id) if self.object_id else None

    async def get_url(self) -> str:
        """After a hub restart: where the server is, once it answers.

        The hub would stop a server that does not answer in its time. It is kept instead: this waits, the hub goes on
        without it, and its lease stays until its container ends.
        """
        with self._stoppable():
            shared = await runtime.get()
        warned = False
        while not self._left:
            with self._stoppable():
                address = await self._address(shared)
                known = await self.poll() is not None or bool(address and await self._answers(address))
            if known and not self._left:
                return f"{address}{self.server.base_url}" if address else str(self.server.url)
            if not warned:
                self.log.warning(
                    "%s runs but does not answer at %s: it is kept", self._log_name, address or "any address"
                )
                warned = True
            with self._stoppable():
                await asyncio.sleep(CHECK_STEP_S)
        # the hub cannot give its check up, and would end it with a stop of what has this name by now
        while True:  # noqa: ASYNC110 - nothing is waited for
            await asyncio.sleep(FOR_EVER_S)

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let a Stop through while the hub's check of a server waits; the hub answers it with an error otherwise.

        A server with an address counts as running meanwhile. One without has none to be routed to, so it stays under
        check, until the hub gives up what it takes for the start that is being checked.
        """
        if not (self._restored and self._check_pending) or self._spawn_future is not None:
            yield
            return
        addressed = bool(self.server and self.server.ip and self.server.port)
        self._check_pending = not addressed
        given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        given_up.add_done_callback(self._no_longer_checked)
        self._spawn_future = None if addressed else given_up
        try:
            yield
        finally:
            if self._spawn_future is given_up:
                self._spawn_future = None
            if not given_up.cancelled() and not self._left:
                self._check_pending = True  # the hub goes on with its check

    def _no_longer_checked(self, given_up: "asyncio.Future[None]") -> None:
        if self._spawn_future is given_up:
            self._spawn_future = None
            self._check_pending = False

    @property
    def _left(self) -> bool:
        """Whether the server that the hub found at its start has been stopped, or started anew."""
        return bool(self._stop_pending) or not self._restored

    async def _address(self, shared: Runtime) -> str:
        if self.server.port and self.server.ip:
            return str(self.server.host)
        try:
            ip = await shared.engine.address(self.object_id, shared.settings.network.name) if self.object_id else ""
        except (EngineUnknown, EngineRefuses):
            return ""
        return f"http://{ip}:{self.port}" if ip else ""

    def _adopt(self, shared: Runtime) -> None:
        """Find the container of a start that the hub did not live to record."""
        found = shared.arbiter.find(self.user.name, self.name)
        if found is not None:
            self.object_id, self.object_name, self.lease_id = found.id, found.name, found.labels[LABEL + "lease"]
            self.log.info("%s is adopted: container %s, lease %s", self._log_name, found.name, self.lease_id)

    def _lease_ended(self) -> None:
        """Tell the hub now instead of at its next poll; a start or stop under way finds out by itself."""
        if self.pending is None:
            self._ended_task = asyncio.ensure_future(self.poll_and_notify())

    def get_state(self) -> dict[str, Any]:
        """Remember the lease beside the container, and how long it may be idle (for the culler)."""
        state: dict[str, Any] = super().get_state()
        if self.lease_id:
            state["lease_id"] = self.lease_id
        if self._idle_s:
            state["idle_s"] = self._idle_s
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up what the last hub process knew."""
        super().load_state(state)
        self.lease_id, self._idle_s = str(state.get("lease_id", "")), int(state.get("idle_s", 0))
        self._restored = True

    def clear_state(self) -> None:
        """Forget the server; if anything of it is left, the arbiter removes it."""
        super().clear_state()
        shared = runtime.current_or_none()
        if self.lease_id and shared is not None and shared.arbiter.holds(self.lease_id):
            shared.arbiter.abandon(self.lease_id)
        self.lease_id = self.object_id = ""
        self._restored = False
        self._progress.clear()

    # -- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, step: Phase, **values: str | int | float) -> None:
        self._progress.tell(step, self._language(), **values)

    def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Give the steps of the start as they happen."""
        return self._progress.events()

    @property
    def notices(self) -> list[str]:
        """What the person is to be told about their running server, oldest first; the home page shows it."""
        shared = runtime.current_or_none()
        found = shared.watch.notices(self.lease_id) if shared and self.lease_id else ()
        return [notice(told, self._language()) for told in found]

    def _turned_down(self, shared: Runtime, error: Exception) -> SpawnException:
        refusal = refusal_for(error)
        shared.refused(self.user.name, self.name, refusal)
        return said(refusal, shared.settings.hub.language)

    def _language(self) -> Language:
        shared = runtime.current_or_none()
        return shared.settings.hub.language if shared else "en"
