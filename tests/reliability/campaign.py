"""Rounds of breaking: a hub process behind a proxy, killed, cancelled or starved at a chosen engine call, then judged.

The hub process is the product's engine client and arbiter alone: quick enough for rounds in every run of the tests.
hub_campaign.py does the same to a whole JupyterHub. The judge looks from outside, at the engine itself, and compares
with what the hub says. Each zero of verdict.py gets SETTLE_S to come true, a double grant no time at all.
"""

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from spawner.core.ledger import LABEL
from tests.reliability.verdict import SETTLE_S, USERS, Verdict, doubles, leaked, unexplained
from tests.rig.engine import PrivateEngine
from tests.rig.fault_proxy import Fault, FaultProxy

__all__ = ["Campaign", "HubProcess"]

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 90.0
START_CALLS = 4  # look for the image, create, start, ask for the address
CALLS = 6  # a stop and what follows it make up to 6: stop, remove, ask how it ended, list what is left


class HubProcess:
    """One process of the hub; commands go to it and answers come back by number."""

    def __init__(self, url: str, database: Path, image: str, *, limit_s: int = 5) -> None:
        self._command = [sys.executable, "-m", "tests.reliability.hub_process", str(database), image]
        self._environment = os.environ | {
            "DOCKER_HOST": url,
            "GPUCAMPUS_TEST_LIMIT_S": str(limit_s),
            "PYTHONPATH": str(ROOT),
        }
        self._log = database.with_suffix(".log")
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until it has rebuilt its ledger, or has given up waiting for the engine."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "--", *self._command),
                cwd=ROOT,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        ready = self._expect(0)
        self._reading = asyncio.create_task(self._read())
        await asyncio.wait_for(ready, ANSWER_S)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()

    async def gone(self) -> None:
        """Wait until it has ended and its last answers are read."""
        assert self._process is not None
        assert self._reading is not None
        await self._process.wait()
        await self._reading

    def send(self, do: str, **arguments: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a command; its number and its answer to come, which says "killed" when the process ends first."""
        assert self._process is not None
        assert self._process.stdin is not None
        number = next(self._numbers)
        answer = self._expect(number)
        self._process.stdin.write(json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n")
        return number, answer

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        return await asyncio.wait_for(self.send(do, **arguments)[1], ANSWER_S)

    def _expect(self, number: int) -> asyncio.Future[dict[str, Any]]:
        self._answers[number] = asyncio.get_running_loop().create_future()
        return self._answers[number]

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            future = self._answers.pop(answer["id"])
            if not future.done():
                future.set_result(answer)
        for future in self._answers.values():
            if not future.done():
                future.set_result({"ok": False, "why": "killed"})


class Campaign:
    """An engine, a proxy and a hub that is broken again and again."""

    def __init__(
        self, engine: PrivateEngine, proxy: FaultProxy, image: str, folder: Path, seed: int = 20261130
    ) -> None:
        self.engine = engine
        self.proxy = proxy
        self.image = image
        self.database = folder / "hub.json"
        self.dice = random.Random(seed)
        self.verdict = Verdict()
        self.hub = self._new_hub()

    @classmethod
    @asynccontextmanager
    async def on(cls, engine: PrivateEngine, image: str, folder: Path) -> AsyncIterator["Campaign"]:
        """A campaign with its hub running; everything that it made is removed at its end."""
        async with FaultProxy(engine.url) as proxy:
            campaign = cls(engine, proxy, image, folder)
            try:
                await campaign.hub.start()
                yield campaign
            finally:
                campaign.hub.kill()
                await campaign.hub.gone()
                for row in await asyncio.to_thread(campaign.containers):
                    await asyncio.to_thread(engine.client.api.remove_container, row["Id"], force=True)

    async def restart(self) -> None:
        """Kill the hub if it still runs, and start the next process."""
        self.hub.kill()
        await self.hub.gone()
        self.hub = self._new_hub()
        await self.hub.start()

    def containers(self) -> list[dict[str, Any]]:
        """What is really on the engine."""
        found: list[dict[str, Any]] = self.engine.client.api.containers(all=True, filters={"label": LABEL + "lease"})
        return found

    # -- rounds --------------------------------------------------------------------------------------------------------

    async def killed(self, number: int) -> None:
        """Kill the hub with -9 at a call of a start or a stop, before or after the engine has carried it out."""
        user, do = await self._next()
        call, after = 1 + number % CALLS, bool(number // CALLS % 2)
        self.proxy.at(call, self.hub.kill, after=after)
        beside = self.hub.send("start", user=other)[1] if (other := await self._idle(user)) else None
        _, answer = self.hub.send(do, user=user)
        await asyncio.wait_for(answer, ANSWER_S)
        if beside is not None:
            await asyncio.wait_for(beside, ANSWER_S)
        self._note(do, call, after)
        await self.restart()
        await self.judge()

    async def cancelled(self, number: int) -> None:
        """Press Stop at a call of a start; the engine carries out what it was asked all the same."""
        user = await self._free_user()
        call, after = 1 + number % START_CALLS, bool(number // START_CALLS % 2)
        started, answer = self.hub.send("start", user=user)
        self.proxy.at(call, lambda: self._cancel(started), after=after)
        await asyncio.wait_for(answer, ANSWER_S)
        self._note("start", call, after)
        await self.judge()

    async def late(self, number: int) -> None:
        """Press Stop while the engine is slow with a create: its container appears a second later."""
        user = await self._free_user()
        self.proxy.delay_s = 1.0
        self.proxy.set(Fault.DELAY, lambda line: "/containers/create" in line)
        started, answer = self.hub.send("start", user=user)
        self.proxy.at(2, lambda: self._cancel(started))
        await asyncio.wait_for(answer, ANSWER_S)
        self._note("start", 2, False)
        await self.judge()
        self.proxy.set(Fault.NONE)

    async def timed_out(self, number: int) -> None:
        """Let the hub's start_timeout run out at a call of a start, which the engine carries out too late."""
        user = await self._free_user()
        call, after = 1 + number % START_CALLS, bool(number // START_CALLS % 2)
        self.proxy.at(call, lambda: asyncio.sleep(2.5), after=after)
        await self.hub.ask("start", user=user, limit_s=1.5)
        self._note("start", call, after)
        await self.judge()

    # -- judging -------------------------------------------------------------------------------------------------------

    async def judge(self) -> None:
        """Count the zeros of this round: double grants now and while things settle, the others once they have."""
        self.verdict.rounds += 1
        end = time.monotonic() + SETTLE_S
        while True:
            rows = await asyncio.to_thread(self.containers)
            state = await self.hub.ask("state", reap=True)
            known = {server["lease"] for server in state["servers"].values() if server}
            twice, lost = doubles(rows), leaked(rows, state["leases"], known)
            strange = unexplained(rows, known)
            if twice:
                break
            if not (lost or strange or state["conflicts"] or state["orphans"]) and state["fresh"]:
                return
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.2)
        self.verdict.double_grants += len(twice)
        self.verdict.leaked_leases += len(lost)
        self.verdict.unexplained_containers += len(strange)
        self.verdict.notes.append(
            f"round {self.verdict.rounds}: double {twice}, leaked {lost}, unexplained {strange}, "
            f"calls {self.proxy.calls}, the hub says {state}"
        )

    async def _next(self) -> tuple[str, str]:
        """Whom to start or stop: stops come as often as starts, and some users keep theirs over several rounds."""
        servers = (await self.hub.ask("state"))["servers"]
        user = self.dice.choice(USERS)
        return (user, "stop") if servers.get(user) else (user, "start")

    async def _idle(self, but: str) -> str:
        servers = (await self.hub.ask("state"))["servers"]
        idle = [user for user in USERS if user not in servers and user != but]
        return self.dice.choice(idle) if idle and self.dice.random() < 0.5 else ""

    async def _free_user(self) -> str:
        """A user without a server, and a free GPU: one server is stopped where three are running."""
        servers = (await self.hub.ask("state"))["servers"]
        if len(servers) >= 3:
            await self.hub.ask("stop", user=self.dice.choice(sorted(servers)))
        return self.dice.choice([user for user in USERS if user not in servers])

    def _cancel(self, number: int) -> None:
        self.hub.send("cancel", number=number)

    def _note(self, do: str, call: int, after: bool) -> None:
        """Count where this round broke its hub; the places of no act are those that it never reached."""
        self.verdict.broken(do, call, after=after, reached=len(self.proxy.calls) >= call)
        self.proxy.at(0, lambda: None)

    def _new_hub(self) -> HubProcess:
        return HubProcess(self.proxy.url, self.database, self.image)
