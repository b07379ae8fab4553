"""A hub as far as leases go: the product's engine client and arbiter, driven as GPUDockerSpawner and JupyterHub do.

It reads one JSON command a line and answers with one JSON line for each. What JupyterHub's database would know (which
server is being started, which lease runs) is in a file, written at the moments at which JupyterHub commits; everything
else is lost when this process is killed, as in the hub.

    python -m tests.reliability.hub_process DATABASE IMAGE
"""

import asyncio
import json
import os
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spawner import endings
from spawner.arbiter import Arbiter, Refused
from spawner.core.ledger import LABEL
from spawner.core.model import GIB, GPU, Claim, Entitlement, Limits, Mode, Node, Variant
from spawner.docker_api import Engine, EngineRefuses, EngineSaysGone, EngineUnknown

VARIANT = Variant(name="probe", title="The tests' own image")
LIMITS = Limits(memory_bytes=GIB, cpus=1, pids=64, shm_bytes=GIB, tmp_bytes=GIB, tmp_inodes=1000, nofile=1024)
NODE = Node(
    name="node",
    gpus=tuple(
        GPU(uuid=f"GPU-{number}", index=number, name="GPU", memory_bytes=GIB, compute_capability=80)
        for number in range(4)
    ),
    driver="570.86.15",
    memory_bytes=512 * GIB,
    cpus=64,
)
LIMIT_S = int(os.environ.get("GPUCAMPUS_TEST_LIMIT_S", "5"))  # of an engine call; a real hub waits longer
endings.LATE_CREATE_S = 2.0 * LIMIT_S  # as in a real hub: twice as long
NOT_DONE = (Refused, EngineUnknown, EngineRefuses, EngineSaysGone, TimeoutError)


class Hub:
    """Servers by user; one user has at most one."""

    def __init__(self, database: Path, image: str) -> None:
        self.database = database
        self.image = image
        self.servers: dict[str, dict[str, str]] = json.loads(database.read_text()) if database.exists() else {}
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.arbiter = Arbiter(
            Engine(limit_s=LIMIT_S),
            hub="campus",
            nodes=lambda: (NODE,),
            clock=lambda: datetime.now(UTC),
            new_id=lambda: uuid.uuid4().hex[:16],
        )

    def commit(self) -> None:
        """Write the database as a transaction does: whole or not at all."""
        partial = self.database.with_suffix(".partial")
        partial.write_text(json.dumps(self.servers))
        partial.rename(self.database)

    async def begin(self) -> None:
        """Rebuild the ledger and look at the servers that the database knows, as the hub does at its start."""
        if not await self.arbiter.begin(3):
            return
        for user, known in list(self.servers.items()):
            found = self.arbiter.find(user, "")
            if not known and found is not None:  # a start that the last process did not live to commit
                known.update(lease=found.labels[LABEL + "lease"], container=found.id)
            if not known or self.arbiter.end_of(known["lease"]) is not None:
                del self.servers[user]
        self.commit()

    async def start(self, user: str, *, gpus: int = 1, limit_s: float = 60) -> dict[str, Any]:
        """Start a server as the spawner does, under the hub's start_timeout."""
        self.servers[user] = {}
        self.commit()
        lease_id = ""
        try:
            async with asyncio.timeout(limit_s):
                await self.arbiter.engine.image(self.image)
                await self.arbiter.retire(user, "")
                lease = self.arbiter.reserve(_claim(user, gpus), image=self.image)
                lease_id = lease.id
                host = self.arbiter.engine.host_config(init=True)
                name = f"gpucampus-{user}--{lease.id}"
                made = await self.arbiter.create(
                    lease.id, image=self.image, name=name, command=["sleep", "600"], host_config=host
                )
                await self.arbiter.start(lease.id, made["Id"])
                await self.arbiter.engine.call("inspect_container", made["Id"])
        except BaseException:
            if lease_id:
                self.arbiter.abandon(lease_id)
            del self.servers[user]
            self.commit()
            raise
        self.servers[user] = {"lease": lease.id, "container": made["Id"]}
        self.commit()
        return {"lease": lease.id, "container": made["Id"], "gpus": lease.gpus}

    async def stop(self, user: str) -> dict[str, Any]:
        """Stop a server as the spawner does."""
        known = self.servers[user]
        try:
            if self.arbiter.end_of(known["lease"]) is None:
                await self.arbiter.stop(known["lease"], known["container"], 2)
                await self.arbiter.remove(known["lease"], known["container"])
        finally:
            if self.arbiter.holds(known["lease"]):
                self.arbiter.abandon(known["lease"])
            del self.servers[user]
            self.commit()
        return {}

    async def poll(self, user: str) -> dict[str, Any]:
        """The kind of end of a server, None while it runs or while that is not known."""
        end = self.arbiter.end_of(self.servers[user]["lease"])
        return {"end": end and end.code.value}

    async def state(self, *, reap: bool = False) -> dict[str, Any]:
        """What this process believes."""
        if reap and self.arbiter.engine.cache.fresh:
            self.arbiter.reap()
        ledger = self.arbiter.ledger()
        return {
            "leases": {lease.id: lease.gpus for lease in ledger.leases},
            "conflicts": [conflict.gpu for conflict in ledger.conflicts],
            "orphans": [orphan.name for orphan in ledger.orphans],
            "quarantined": dict(self.arbiter.quarantined()),
            "servers": self.servers,
            "fresh": self.arbiter.engine.cache.fresh,
        }

    async def cancel(self, number: int) -> dict[str, Any]:
        """Cancel a command under way, as the Stop button does with a start."""
        if task := self.tasks.get(number):
            task.cancel()
        return {}

    async def answer(self, number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Carry out a command; its failure is an answer, too."""
        try:
            return {"id": number, "ok": True, **await getattr(self, name)(**arguments)}
        except Refused as refused:
            return {"id": number, "ok": False, "why": refused.refusal.code.value}
        except asyncio.CancelledError:
            return {"id": number, "ok": False, "why": "cancelled"}
        except NOT_DONE as error:
            return {"id": number, "ok": False, "why": f"{type(error).__name__}: {error}"}


def _claim(user: str, gpus: int) -> Claim:
    entitlement = Entitlement(
        role="student",
        gpus=1,
        modes=(Mode.EXCLUSIVE, Mode.NONE),
        memory_bytes=GIB,
        default_memory_bytes=GIB,
        cpus=1,
        max_runtime_s=36_000,
        idle_s=3600,
    )
    mode = Mode.EXCLUSIVE if gpus else Mode.NONE
    return Claim(user=user, server="", variant=VARIANT, mode=mode, gpus=gpus, limits=LIMITS, entitlement=entitlement)


async def main(database: Path, image: str) -> None:
    """Serve until the commands end."""
    hub = Hub(database, image)
    await hub.begin()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print(json.dumps({"id": 0, "ok": True}), flush=True)

    async def serve(number: int, name: str, arguments: dict[str, Any]) -> None:
        answer = await hub.answer(number, name, arguments)
        print(json.dumps(answer), flush=True)

    while line := await commands.readline():
        command = json.loads(line)
        number = command.pop("id")
        hub.tasks[number] = asyncio.create_task(serve(number, command.pop("do"), command))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
