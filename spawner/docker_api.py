"""The container engine: the only module that speaks to Docker.

- Calls run in threads of their own lanes, each with a time limit: a hanging stop or pull never holds up a start, and
  no call holds up the end of the process.
- Four answers are told apart: done, `EngineSaysGone` (404), `EngineRefuses` (another 4xx: our fault, and nothing was
  done), `EngineUnknown` (5xx, time-out, refused connection: something may have happened, so every lease stays).
- The engine's events are followed into a StateCache, so that asking whether a server runs costs nothing.
"""

import asyncio
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network
from typing import Any, Literal

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.types import DeviceRequest, IPAMConfig, IPAMPool, Mount, Ulimit
from docker.utils import kwargs_from_env

from spawner.core.exits import WORDS_TELL, Final
from spawner.core.ledger import LABEL, Container
from spawner.lanes import Lane
from spawner.state_cache import StateCache

__all__ = [
    "BRIDGE_OPTION",
    "Engine",
    "EngineFails",
    "EngineRefuses",
    "EngineSaysGone",
    "EngineSilent",
    "EngineUnknown",
    "Image",
    "bind_mount",
    "device_request",
    "list_containers_once",
    "look_once",
    "once",
    "prepare_host",
    "remove_once",
    "stop_once",
    "ulimit",
]

LaneName = Literal["control", "slow"]
LOG = logging.getLogger(__name__)
CONTROL_THREADS = 16
SLOW_THREADS = 8
CONTROL_LIMIT_S = 30
PULSE_S = 15.0
EVENTS_LIMIT_S = 60  # after so long without an event the stream is opened anew: a connection may be dead and not say so
BRIDGE_OPTION = "com.docker.network.bridge.name"
_ICC = "com.docker.network.bridge.enable_icc"
_OURS = {"label": LABEL + "lease"}
_NEVER_SENT = ("ConnectionRefusedError", "FileNotFoundError")
_EVENTS_KEPT = 1000
_WORDS_KEPT = 5  # lines; the engine keeps none longer than 16 KiB


class EngineUnknown(Exception):  # noqa: N818 - a state of knowledge, not an error of ours
    """The engine did not answer, or answered that it is in trouble: whether the call had an effect is not known."""


class EngineFails(EngineUnknown):
    """The engine answered that it could not (5xx); its words are in the text. Part of it may have been done."""


class EngineSilent(EngineUnknown):
    """The call was sent and no answer came in time: the engine may still carry it out."""


class EngineSaysGone(Exception):  # noqa: N818
    """The engine knows no such thing (404)."""


class EngineRefuses(Exception):  # noqa: N818
    """The engine turned the call down (4xx) and did nothing."""


_TROUBLE = (DockerException, requests.RequestException, OSError)
_OUTCOMES: Mapping[type[Exception], str] = {
    EngineSaysGone: "gone",
    EngineRefuses: "refused",
    EngineFails: "failed",
    EngineSilent: "silent",
    EngineUnknown: "unreachable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of this machine."""

    id: str
    labels: Mapping[str, str]
    digests: tuple[str, ...] = ()  # references by digest, of what was pulled or pushed


class Engine:
    """One Docker Engine, by DOCKER_HOST or the usual socket."""

    def __init__(
        self,
        *,
        limit_s: int = CONTROL_LIMIT_S,
        called: Callable[[str, str, float], None] = lambda _method, _outcome, _seconds: None,
    ) -> None:
        self.limit_s = limit_s
        self._called = called  # is told each call's method, what came of it, and its seconds
        self.cache = StateCache()
        self._lanes: Mapping[LaneName, Lane] = {
            "control": Lane("engine-control", CONTROL_THREADS),
            "slow": Lane("engine-slow", SLOW_THREADS),
        }
        self._client: docker.APIClient | None = None
        self._client_lock = threading.Lock()
        self._closing = threading.Event()
        self._pulse: asyncio.Task[None] | None = None
        self._listed = asyncio.Event()
        self._on_end: Callable[[Container], None] = lambda _container: None

    # -- calls -----------------------------------------------------------------------------------------------------

    @property
    def client(self) -> docker.APIClient:
        """The client; the first use asks the engine for its version and must not be on the event loop."""
        with self._client_lock:
            if self._client is None:
                self._client = _new_client(self.limit_s)
            return self._client

    async def raw(
        self, method: str, *args: Any, lane: LaneName = "control", limit_s: float | None = None, **kwargs: Any
    ) -> Any:
        """Call a method of docker-py; its own exceptions pass, a time-out is EngineUnknown."""
        limit = limit_s or self.limit_s
        began, outcome = time.monotonic(), "given-up"
        try:
            # the thread goes on after a time-out; the client's own limit ends it
            answer = await self._lanes[lane].run(lambda: getattr(self.client, method)(*args, **kwargs), limit)
            outcome = "done"
            return answer
        except TimeoutError as error:
            outcome = _OUTCOMES[EngineSilent]
            raise EngineSilent(f"{method} did not answer within {limit:.0f} s") from error
        except _TROUBLE as error:
            outcome = _OUTCOMES[type(_kind_of(error, method))]
            raise
        finally:
            self._called(method, outcome, time.monotonic() - began)

    async def call(
        self, method: str, *args: Any, lane: LaneName = "control", limit_s: float | None = None, **kwargs: Any
    ) -> Any:
        """Call a method of docker-py; failures are one of the three kinds of this module."""
        try:
            return await self.raw(method, *args, lane=lane, limit_s=limit_s, **kwargs)
        except _TROUBLE as error:
            raise _kind_of(error, method) from error

    def host_config(self, **parts: Any) -> Any:
        """Build a host config for the engine's version; the client must have connected before."""
        return self.client.create_host_config(**parts)

    async def image(self, reference: str) -> Image | None:
        """Find an image that is on this machine."""
        found = await self._or_none("inspect_image", reference)
        if found is None:
            return None
        labels, digests = found["Config"].get("Labels") or {}, found.get("RepoDigests") or ()
        return Image(id=str(found["Id"]), labels=dict(labels), digests=tuple(digests))

    async def inspect(self, container_id: str) -> dict[str, Any] | None:
        """Everything that the engine says of a container; None only where it says that there is none."""
        return await self._or_none("inspect_container", container_id)

    async def _or_none(self, method: str, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await self.call(method, name)
        except EngineSaysGone:
            return None
        return found

    async def final(self, container_id: str) -> Final | None:
        """How a container ended, or None while it runs."""
        found = await self.call("inspect_container", container_id)
        state = found["State"]
        if state["Running"]:
            return None
        return Final(
            exit_code=state["ExitCode"],
            oom_killed=state["OOMKilled"],
            error=state["Error"],
            memory_bytes=found["HostConfig"]["Memory"],
            words=await self._last_words(container_id) if state["ExitCode"] in WORDS_TELL else "",
        )

    async def _last_words(self, container_id: str) -> str:
        """The last few lines that a container wrote; empty where they cannot be had, since its end is known without."""
        try:
            written: bytes = await self.call("logs", container_id, tail=_WORDS_KEPT)
        except (EngineUnknown, EngineRefuses, EngineSaysGone):
            return ""
        return written.decode(errors="replace")

    async def address(self, container_id: str, network: str) -> str:
        """A container's address on our bridge; empty while it has none."""
        found = await self.call("inspect_container", container_id)
        return str(found["NetworkSettings"]["Networks"].get(network, {}).get("IPAddress", ""))

    # -- following the engine --------------------------------------------------------------------------------------

    def follow(self, on_end: Callable[[Container], None]) -> None:
        """Start to follow the engine; `on_end` is called on the event loop with each container that ended or is gone.

        It may be called more than once for one container; whether it is gone, the cache knows.
        """
        self._on_end = on_end
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read_events, args=(loop,), name="engine-events", daemon=True).start()
        self._pulse = asyncio.create_task(self._keep_listing())

    async def listed(self, timeout_s: float) -> bool:
        """Wait until the engine has been listed once; False when that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._listed.wait()
        except TimeoutError:
            return False
        return True

    async def refresh(self) -> None:
        """List the engine's containers; those that are missing are asked for one by one before they are dropped."""
        since = self.cache.asked(time.time_ns())
        try:
            listing = [_container(row) for row in await self.call("containers", all=True, filters=_OURS)]
            for container_id in self.cache.merge(listing, since):
                try:
                    await self.call("inspect_container", container_id)
                except EngineSaysGone:
                    if gone := self.cache.drop(container_id):
                        self._on_end(gone)
        except (EngineUnknown, EngineRefuses) as error:
            if self.cache.fresh:
                LOG.warning("The container engine does not answer; every lease stays as it is (%s)", error)
            self.cache.fresh = False
            return
        if not self.cache.fresh:
            LOG.info("The container engine answers: %d containers with leases", len(listing))
        self.cache.fresh = True
        self._listed.set()
        for container in self.cache:
            if container.ended:
                self._on_end(container)

    def close(self) -> None:
        """Stop following; calls under way end by their limits."""
        self._closing.set()
        if self._pulse:
            self._pulse.cancel()
        for lane in self._lanes.values():
            lane.close()

    async def _keep_listing(self) -> None:
        """List now and then: what the event stream missed is found within PULSE_S, and a hung engine is noticed."""
        while True:
            await self.refresh()
            await asyncio.sleep(PULSE_S if self.cache.fresh else 1.0)

    def _apply(self, event: Mapping[str, Any]) -> None:
        if ended := self.cache.apply(event):
            self._on_end(ended)

    def _read_events(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: read events for ever. `since` closes the gap between two subscriptions."""
        since, pause = int(time.time()), 0.2
        seen: deque[tuple[Any, ...]] = deque(maxlen=_EVENTS_KEPT)
        while not self._closing.is_set() and not loop.is_closed():
            try:
                client = _new_client(EVENTS_LIMIT_S)
                filters = {"type": "container", **_OURS}
                for line in client.events(since=since, filters=filters, decode=True):
                    since, pause = int(line.get("time", since + 1)) - 1, 0.2
                    key = (line.get("timeNano"), line.get("Action"), line.get("Actor", {}).get("ID"))
                    if key not in seen:  # an event of the past must not undo what came after it
                        seen.append(key)
                        loop.call_soon_threadsafe(self._apply, line)
            except (DockerException, requests.RequestException, OSError, json.JSONDecodeError) as error:
                LOG.debug("The event stream broke: %s", error)
            except RuntimeError:  # the event loop is closed: the hub ends
                return
            self._closing.wait(pause)
            pause = min(pause * 2, 5.0)


def device_request(driver: str, ids: tuple[str, ...], capabilities: list[list[str]]) -> DeviceRequest:
    """Build one request by ids: Count stays 0, since the engine refuses both and a count always picks the first GPU."""
    return DeviceRequest(driver=driver, count=0, device_ids=list(ids), capabilities=capabilities)


def ulimit(name: str, soft: int, hard: int) -> Ulimit:
    """Describe one ulimit; -1 is no limit."""
    return Ulimit(name=name, soft=soft, hard=hard)


def bind_mount(source: str, target: str, *, read_only: bool = False) -> Mount:
    """Describe a bind mount; unlike a bind, a missing source is an error instead of a new empty folder."""
    return Mount(target=target, source=source, type="bind", read_only=read_only)


def prepare_host(name: str, bridge: str, subnet: IPv4Network) -> None:
    """Make the engine ready before the hub binds to the bridge: our network, and limits that hold. Blocks.

    Raises EngineRefuses where the engine can never serve us, and EngineUnknown where it does not answer now.
    """
    try:
        client = _new_client(CONTROL_LIMIT_S)
        if not client.info()["MemoryLimit"]:
            raise EngineRefuses(
                "the container engine cannot limit memory on this machine; enable the memory cgroup controller"
            )
        networks = client.networks(names=[f"^{name}$"])
        if networks:
            _check_network(name, networks[0], subnet)
            return
        pool = IPAMPool(subnet=str(subnet), gateway=str(next(subnet.hosts())))
        client.create_network(
            name,
            driver="bridge",
            ipam=IPAMConfig(pool_configs=[pool]),
            options={BRIDGE_OPTION: bridge, _ICC: "false"},
            labels={LABEL + "project": "gpucampus"},
        )
    except (DockerException, requests.RequestException, OSError) as error:
        raise _kind_of(error, "prepare") from error


def _check_network(name: str, found: Mapping[str, Any], subnet: IPv4Network) -> None:
    subnets = [pool.get("Subnet") for pool in found["IPAM"]["Config"]]
    closed = found["Options"].get(_ICC) == "false"
    if subnets != [str(subnet)] or not closed:
        raise EngineRefuses(
            f"the Docker network {name} has the subnet {', '.join(map(str, subnets))}"
            f"{'' if closed else ' and lets containers reach each other'}, not {subnet}: "
            "remove it, or set another network.name"
        )


def list_containers_once() -> list[Container]:
    """List the containers with a lease, for the command line; EngineUnknown where no engine answers."""
    with once("list") as client:
        return [_container(row) for row in client.containers(all=True, filters=_OURS)]


def look_once(container_id: str, network: str) -> tuple[str, datetime | None]:
    """Tell a container's address on our bridge and when it started; empty and None while there is none. Blocks."""
    with once("inspect") as client:
        found = client.inspect_container(container_id)
    address = str(found["NetworkSettings"]["Networks"].get(network, {}).get("IPAddress", ""))
    started = datetime.fromisoformat(found["State"]["StartedAt"])
    return address, started if started.year > 1 else None  # the engine writes the year 1 for never


def stop_once(container_id: str, grace_s: int) -> None:
    """Stop a container from the command line; one that is gone or has stopped is fine. Blocks."""
    with suppress(EngineSaysGone), once("stop") as client:
        client.stop(container_id, timeout=grace_s)


def remove_once(container_id: str) -> None:
    """Remove a container from the command line, whatever its state; one that is gone is fine. Blocks."""
    with suppress(EngineSaysGone), once("remove") as client:
        client.remove_container(container_id, v=True, force=True)


@contextmanager
def once(method: str) -> Iterator[docker.APIClient]:
    """Give a client for calls beside the hub's own; failures are one of the three kinds of this module. Blocks."""
    try:
        yield _new_client(CONTROL_LIMIT_S)
    except (DockerException, requests.RequestException, OSError) as error:
        raise _kind_of(error, method) from error


def _new_client(limit_s: int) -> docker.APIClient:
    return docker.APIClient(
        version="auto",
        timeout=limit_s,
        max_pool_size=CONTROL_THREADS + SLOW_THREADS,
        **kwargs_from_env(),
    )


def _container(row: Mapping[str, Any]) -> Container:
    name = (row.get("Names") or ["/"])[0].lstrip("/")
    return Container(id=row["Id"], name=name, state=row["State"], labels=dict(row.get("Labels") or {}))


def _kind_of(error: Exception, method: str) -> Exception:
    if isinstance(error, NotFound):
        return EngineSaysGone(str(error.explanation))
    if isinstance(error, APIError) and error.response is not None and error.response.status_code < 500:
        return EngineRefuses(f"{method}: {error.explanation}")
    if isinstance(error, APIError):
        return EngineFails(f"{method}: {error.explanation}")
    never_sent = isinstance(error, DockerException) or any(text in str(error) for text in _NEVER_SENT)
    return (EngineUnknown if never_sent else EngineSilent)(f"{method}: {error}")
