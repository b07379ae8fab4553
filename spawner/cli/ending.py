"""How the command line ends a server: through the hub where it is up and the server is its own, else by the engine.

Through the hub it is a stop like the person's own. By the engine it is stopped all the same, with the same grace; a hub
that is up sees it end by the engine's event, and one that is down finds it gone when it comes back.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from spawner import docker_api
from spawner.audit import AuditLog
from spawner.cli.machine import Engine, Hub, note_end
from spawner.core.exits import EndCode
from spawner.core.ledger import LABEL, Container
from spawner.core.model import Lease
from spawner.hub_api import HubUnknown
from spawner.settings import Settings

__all__ = ["Ended", "Ending", "said"]

AT_ONCE = 8
HUB_MARGIN_S = 30.0
BURIAL_S = 5.0  # the hub reads why a container ended before it removes it: let it
PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of one container. `by` is "hub" or "engine"; `finding` says what did not go as it should."""

    container: str
    lease: str
    user: str
    server: str
    by: str
    gone: bool
    finding: str = ""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Ends servers for somebody (`by`), and notes it."""

    settings: Settings
    hub: Hub
    log: AuditLog
    by: str

    def all(self, engine: Engine, containers: Sequence[Container]) -> list[Ended]:
        """Stop and remove containers, some at a time, and wait until the engine says that they are gone."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda container: self._end(container, engine.lease_of(container)), containers))

    def _end(self, container: Container, lease: Lease | None) -> Ended:
        ours = lease is not None and lease.hub == self.settings.hub.name
        grace_s = self.settings.containers.stop_timeout
        trouble = ""
        if lease is not None and ours and lease.kind == "server" and self.hub.up:
            told, trouble = self._tell_hub(container, lease)
            if told:
                if _gone(container.id, grace_s + HUB_MARGIN_S):
                    return _ended(container, lease, "hub")
                finding = f"the hub was told to stop {said(container, lease)}, which is not gone yet; see the hub's log"
                return _ended(container, lease, "hub", finding=finding, gone=False)
        self._note(container, lease, "engine")
        if finding := _by_engine(container, grace_s, hub_buries=ours and self.hub.up):
            return _ended(container, lease, "engine", finding=finding, gone=False)
        if trouble:
            trouble = f"{said(container, lease)} was ended by the engine and not as a stop, since {trouble}"
        if ours and not self.hub.up:  # a hub that is up sees the end and notes it
            self._note(container, lease, EndCode.STOPPED.value, event="ended")
            trouble = note_end(self.settings, container.labels[LABEL + "lease"])
        return _ended(container, lease, "engine", finding=trouble)

    def _tell_hub(self, container: Container, lease: Lease) -> tuple[bool, str]:
        """Have the hub stop a server that it knows; else False, and what stood against asking it."""
        if self.hub.trouble or not self.hub.knows(lease):
            return False, self.hub.trouble
        self._note(container, lease, "hub")
        try:
            return self.hub.api.stop(lease.user, lease.server), ""
        except HubUnknown as error:
            return False, str(error)

    def _note(self, container: Container, lease: Lease | None, code: str, *, event: str = "release") -> None:
        self.log.write(
            event,
            user=lease.user if lease else container.labels.get(LABEL + "user", ""),
            server=lease.server if lease else container.labels.get(LABEL + "server", ""),
            lease=container.labels.get(LABEL + "lease", ""),
            gpus=lease.gpus if lease else (),
            code=code,
            by=self.by,
            container=container.name,
        )


def said(container: Container, lease: Lease | None) -> str:
    """Name a server for a question or an answer."""
    return f"{lease.user}/{lease.server} (lease {lease.id})" if lease else f"container {container.name}"


def _by_engine(container: Container, grace_s: int, *, hub_buries: bool) -> str:
    """Stop and remove; says why that could not be."""
    try:
        try:
            docker_api.stop_once(container.id, grace_s)
        except docker_api.EngineRefuses:
            hub_buries = False  # such as a container that cannot be stopped: removing it ends it, too
        if hub_buries and _gone(container.id, BURIAL_S):
            return ""
        with suppress(docker_api.EngineRefuses):  # somebody else is removing it
            docker_api.remove_once(container.id)
        if _gone(container.id, HUB_MARGIN_S):
            return ""
    except docker_api.EngineUnknown as error:
        return f"container {container.name} may be running still, and its lease stays: {error}"
    return (
        f"container {container.name} is still there and its lease stays; `docker ps -a` and the engine's log say more"
    )


def _gone(container_id: str, limit_s: float) -> bool:
    """Wait until the engine lists a container no more; one that does not answer has not said so."""
    limit = time.monotonic() + limit_s
    while True:
        try:
            if all(container.id != container_id for container in docker_api.list_containers_once()):
                return True
        except (docker_api.EngineUnknown, docker_api.EngineRefuses):
            pass
        if time.monotonic() > limit:
            return False
        time.sleep(PAUSE_S)


def _ended(container: Container, lease: Lease | None, by: str, *, finding: str = "", gone: bool = True) -> Ended:
    return Ended(
        container=container.name,
        lease=container.labels.get(LABEL + "lease", ""),
        user=lease.user if lease else "",
        server=lease.server if lease else "",
        by=by,
        gone=gone,
        finding=finding,
    )
