"""What the command line knows of the machine: settings, engine, GPUs, records, and the hub if it is up.

What takes long to import is imported where it is used, so that a command waits for its own parts only.
"""

import asyncio
import os
import pwd
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spawner import settings as settings_file
from spawner.cli.show import fail
from spawner.core import ledger
from spawner.core.ledger import LABEL, Container
from spawner.core.model import Lease, Node
from spawner.core.readings import Reading
from spawner.hub_api import HubAPI, HubServer, HubUnknown
from spawner.settings import Settings, SettingsError

if TYPE_CHECKING:
    from spawner.audit import AuditLog
    from spawner.records import Cordon, Records

__all__ = [
    "Engine",
    "Hub",
    "ask_engine",
    "ask_hub",
    "audit_log",
    "cordons",
    "inventory",
    "ledger_findings",
    "load",
    "note_end",
    "operator",
    "records",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The containers with leases, and what they say."""

    containers: tuple[Container, ...] = ()
    book: ledger.Ledger = field(default_factory=ledger.Ledger)
    trouble: str = ""

    def lease_of(self, container: Container) -> Lease | None:
        """The lease that a container holds; None for one that cannot be read."""
        if any(orphan.container == container.id for orphan in self.book.orphans):
            return None
        lease_id = container.labels.get(LABEL + "lease")
        return next((lease for lease in self.book.leases if lease.id == lease_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The hub, as far as it answers: `trouble` says why its servers are not known."""

    api: HubAPI
    up: bool
    servers: tuple[HubServer, ...] = ()
    trouble: str = ""

    def knows(self, lease: Lease) -> bool:
        """Whether a server of the hub is the one that holds this lease."""
        return any(
            (server.user, server.server) == (lease.user, lease.server) and server.lease in ("", lease.id)
            for server in self.servers
        )


def load(*, as_json: bool) -> Settings:
    """Read the settings, or leave with what is wrong with them."""
    try:
        return settings_file.load()
    except SettingsError as error:
        fail(str(error), as_json=as_json)


def inventory(settings: Settings) -> tuple[Node, list[str], Mapping[str, Reading]]:
    """The GPUs, what is a finding about them, and what was read of each, by UUID; no GPU may be as it should be."""
    from spawner import nvml

    name = socket.gethostname()
    answer = asyncio.run(nvml.ask(settings.gpus, name))
    if isinstance(answer, nvml.InventoryFailure):
        return Node(name=name, simulated=settings.gpus.simulated), [f"the GPUs are unknown: {answer.reason}"], {}
    expected = settings.gpus.inventory != "none"
    findings = [f"no GPUs: {answer.reason}"] if answer.reason and expected else []
    return answer.node, findings, answer.readings


def ask_engine() -> Engine:
    """List the containers with leases."""
    from spawner import docker_api

    try:
        containers = tuple(docker_api.list_containers_once())
    except (docker_api.EngineUnknown, docker_api.EngineRefuses) as error:
        return Engine(trouble=f"the container engine does not answer, so leases are unknown ({error})")
    return Engine(containers=containers, book=ledger.rebuild(containers))


def ledger_findings(book: ledger.Ledger) -> list[str]:
    """What is wrong with the leases themselves."""
    conflicts = [f"GPU {item.gpu} is held by more than one lease: {', '.join(item.leases)}" for item in book.conflicts]
    return conflicts + [f"container {item.name} cannot be read as a lease: {item.why}" for item in book.orphans]


def ask_hub(settings: Settings) -> Hub:
    """Ask the hub whether it is up, and for its servers."""
    api = HubAPI(settings.network.gateway, settings.hub.hub_port, settings.state)
    if not api.answers():
        return Hub(api=api, up=False, trouble=f"the hub does not answer on {api.url}/health")
    try:
        return Hub(api=api, up=True, servers=api.servers())
    except HubUnknown as error:
        return Hub(api=api, up=True, trouble=str(error))


@contextmanager
def records(settings: Settings, *, as_json: bool) -> Iterator["Records"]:
    """Open the records; whatever goes wrong with them meanwhile is one finding."""
    from spawner.records import TROUBLE, Records, RecordsError

    try:
        with closing(Records.open(_url(settings))) as opened:
            yield opened
    except RecordsError as error:
        fail(str(error), as_json=as_json)
    except TROUBLE as error:
        fail(f"the records cannot be used: {str(error).splitlines()[0]}", as_json=as_json)


def cordons(settings: Settings) -> tuple[tuple["Cordon", ...], list[str]]:
    """What is closed, or why nobody knows. Looking makes no database."""
    if not _path(settings).exists():
        return (), []
    from spawner.records import TROUBLE, Records, RecordsError

    try:
        with closing(Records.open(_url(settings))) as opened:
            return opened.cordons(), []
    except (RecordsError, *TROUBLE) as error:  # type: ignore[misc]  # a tuple of exception classes
        return (), [f"what is cordoned is unknown: {str(error).splitlines()[0]}"]


def note_end(settings: Settings, lease_id: str) -> str:
    """Close a line of the history while there is no hub that would; says why that could not be."""
    if not _path(settings).exists():
        return ""
    from spawner.core.exits import EndCode
    from spawner.records import TROUBLE, Records, RecordsError

    try:
        with closing(Records.open(_url(settings))) as opened:
            opened.lease_ended(lease_id, EndCode.STOPPED.value, datetime.now(UTC))
    except (RecordsError, *TROUBLE) as error:  # type: ignore[misc]  # a tuple of exception classes
        return f"the end of lease {lease_id} is not in the history: {str(error).splitlines()[0]}"
    return ""


def _path(settings: Settings) -> Path:
    return settings.state / "records.sqlite"


def _url(settings: Settings) -> str:
    return f"sqlite:///{_path(settings)}"


def audit_log(settings: Settings) -> "AuditLog":
    """The file that the hub writes to as well."""
    from spawner.audit import AuditLog

    return AuditLog(settings.state / "log" / "audit.jsonl")


def operator() -> str:
    """The account of whoever typed the command, also behind sudo."""
    if behind := os.environ.get("SUDO_USER"):
        return behind
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
