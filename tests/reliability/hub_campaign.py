"""Rounds of breaking a real JupyterHub: killed, stopped, or out of time at a chosen engine call, then judged.

The judge looks from outside, at the engine and at what the hub's REST API says of its servers; the reservations, which
no container shows, it asks the hub's arbiter for. Each zero gets SETTLE_S to come true, a double grant no time at all.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from spawner.core.ledger import LABEL
from tests.reliability.verdict import SETTLE_S, USERS, Verdict, doubles, leaked, runs, unexplained
from tests.rig.engine import PrivateEngine
from tests.rig.fault_proxy import Fault, FaultProxy
from tests.rig.lean_hub import LeanHub
from tests.rig.visitor import Visitor
from tests.rig.waiting import wait_until

__all__ = ["DATABASES", "HubCampaign"]

# a start looks for the image twice, creates, starts, and asks for the address twice; a stop stops and removes
START_CALLS, STOP_CALLS = 6, 2
MOST_SERVERS = 3
ACT_LIMIT_S = 90
HELD_S = (0.3, 1.5)  # shorter and longer than JupyterHub waits for a start to be cancelled
START_TIMEOUT_S, TOO_LONG_S = 3, 4.5
DATABASES = {"hub's": ("hub.sqlite",), "ours": ("records.sqlite",), "both": ("hub.sqlite", "records.sqlite")}


class HubCampaign:
    """A hub and its people, broken again and again."""

    def __init__(self, hub: LeanHub, faults: FaultProxy, seed: int) -> None:
        self.hub = hub
        self.faults = faults
        self.dice = random.Random(seed)
        self.verdict = Verdict()
        self.people = {user: Visitor(user) for user in USERS}
        self.uids: dict[str, str] = {}
        self.restarts: list[float] = []
        self._calls: list[str] = []

    @classmethod
    @asynccontextmanager
    async def on(
        cls, engine: PrivateEngine, image: str, folder: Path, *, config: Sequence[str] = (), seed: int = 20261201
    ) -> AsyncIterator["HubCampaign"]:
        """A campaign whose hub runs and whose people have signed in; all of it is gone at the end."""
        async with FaultProxy(engine.url) as faults, LeanHub.on(engine, faults, image, folder, config=config) as hub:
            campaign = cls(hub, faults, seed)
            try:
                await campaign.sign_in()
                yield campaign
            finally:
                for person in campaign.people.values():
                    await person.close()

    async def sign_in(self) -> None:
        """Let everybody sign in."""
        for person in self.people.values():
            await person.sign_in()

    def describe(self) -> str:
        """What the hub's logs say; for a failing test."""
        return "\n".join([*self.verdict.notes, self.hub.describe()])

    async def restart(self, *lost: str) -> None:
        """Kill the hub if it still runs, delete databases, and start the next process."""
        self.hub.kill()
        await self.hub.gone()
        self.faults.set(Fault.NONE)
        if lost:
            self.hub.lose(*lost)
        self.restarts.append(await self.hub.start())

    # -- rounds --------------------------------------------------------------------------------------------------------

    async def killed(self, number: int, lost: Sequence[str] = ()) -> None:
        """Kill the hub with -9 at a call of a start or a stop, before or after the engine has carried it out."""
        user, do = await self._next()
        calls = START_CALLS if do == "start" else STOP_CALLS
        call, after = 1 + number % calls, bool(number // calls % 2)
        beside = await self._idle(user)
        self.faults.at(call, self.hub.kill, after=after)
        acts = [self.act(user, do)] + ([self.act(beside, "start")] if beside else [])
        await asyncio.gather(*acts)
        self._broke(do, call, after=after, reached=not self.hub.running)
        await self.restart(*lost)
        if lost:
            await self._take_up(user)
        await self.judge()

    async def stopped(self, number: int) -> None:
        """Press Stop at a call of a start, on the page or through the API; the engine is slow with the call."""
        user = await self._free_user()
        call, after = 1 + number % START_CALLS, bool(number // START_CALLS % 2)
        by_page, held_s = bool(number % 2), HELD_S[number // 2 % 2]
        pressed: list[asyncio.Task[httpx.Response]] = []

        async def press() -> None:
            pressed.append(asyncio.create_task(self.people[user].press_stop(by_page=by_page)))
            await asyncio.sleep(held_s)

        self.faults.at(call, press, after=after)
        await self.act(user, "start")
        self._broke("start", call, after=after, reached=bool(pressed))
        answer = await (pressed[0] if pressed else self.people[user].press_stop(by_page=by_page))
        if answer.status_code not in (httpx.codes.ACCEPTED, httpx.codes.NO_CONTENT):
            self.verdict.refused_stops += 1
            self._note(f"the Stop at call {call} got {answer.status_code} {answer.text[:200]}")
        await self.judge(without=user)

    async def timed_out(self, number: int) -> None:
        """Let JupyterHub's start_timeout run out at a call of a start, which the engine carries out too late."""
        user = await self._free_user()
        call, after = 1 + number % START_CALLS, bool(number // START_CALLS % 2)
        reached: list[bool] = []

        async def hold() -> None:
            reached.append(True)
            await asyncio.sleep(TOO_LONG_S)

        self.faults.at(call, hold, after=after)
        await self.act(user, "start")
        self._broke("start", call, after=after, reached=bool(reached))
        await self.judge()

    # -- judging -------------------------------------------------------------------------------------------------------

    async def judge(self, *, without: str = "") -> None:
        """Count the zeros of this round; `without` names a user whose server must have ended."""
        self.verdict.rounds += 1
        end = time.monotonic() + SETTLE_S
        while True:
            rows = await asyncio.to_thread(self.hub.containers)
            servers, state = await self.hub.servers(), await self.hub.look()
            known = {server["state"].get("lease_id", "") for server in servers.values() if server["state"]}
            twice, lost, strange = doubles(rows), leaked(rows, state["leases"], known), unexplained(rows, known)
            pending = [user for user, server in servers.items() if server["pending"] or not server["ready"]]
            silent = [] if pending or lost else await self._silent(servers)
            odd = [*pending, *silent, *state["conflicts"], *state["orphans"], *({without} & set(servers))]
            if not (twice or lost or strange or odd) and state["fresh"]:
                await self._check_uids(rows)
                return
            if twice or time.monotonic() > end:
                break
            await asyncio.sleep(0.1)
        self.verdict.double_grants += len(twice)
        self.verdict.leaked_leases += len(lost)
        self.verdict.unexplained_containers += len(strange)
        self.verdict.odd_servers += len(odd)
        self._note(f"double {twice}, leaked {lost}, unexplained {strange}, odd {odd}, the hub says {servers} {state}")

    async def _silent(self, servers: dict[str, Any]) -> list[str]:
        """Users whose server counts as ready and cannot be reached through the proxy."""
        return [user for user in servers if await self.people[user].visit() != httpx.codes.OK]

    async def _check_uids(self, rows: list[dict[str, Any]]) -> None:
        """Nobody's uid ever changes, whatever was lost."""
        for row in rows:
            found = await asyncio.to_thread(self.hub.engine.client.api.inspect_container, row["Id"])
            user, uid = row["Labels"][LABEL + "user"], found["Config"]["User"]
            assert self.uids.setdefault(user, uid) == uid, f"{user} was {self.uids[user]} and is {uid}"
        assert len(set(self.uids.values())) == len(self.uids), f"two people have one uid: {self.uids}"

    async def _take_up(self, acted: str) -> None:
        """After a database was lost: nothing is granted twice, the operator sees every lease, and people start again.

        A server that the hub has forgotten goes with its person's next start of it.
        """
        await self.sign_in()
        rows = [row for row in await asyncio.to_thread(self.hub.containers) if runs(row)]
        held = {row["Labels"][LABEL + "lease"]: row["Labels"][LABEL + "user"] for row in rows}
        await wait_until(self._fresh, SETTLE_S, "the hub has read the engine")  # type: ignore[arg-type]
        kept = set((await self.hub.look())["leases"])
        listed = {lease["id"] for lease in json.loads(await self.hub.command("leases", "--json"))["leases"]}
        assert set(held) <= kept & listed, f"running {held}, the hub has {kept}, gpucampus lists {listed}"
        servers = await self.hub.servers()
        forgotten = sorted({user for user in held.values() if user not in servers})
        await asyncio.gather(*(self.act(user, "start") for user in forgotten))
        servers = await self.hub.servers()
        assert set(forgotten) <= set(servers), f"{forgotten} started again, and only {sorted(servers)} have servers"
        if acted in servers:  # a person is looked up at a start
            await self.act(acted, "stop")
        await self.act(acted, "start")

    async def _fresh(self) -> bool:
        return bool((await self.hub.look())["fresh"])

    # -- acting --------------------------------------------------------------------------------------------------------

    async def act(self, user: str, do: str) -> None:
        """Press Start or Stop and wait until the hub is through with it, or dead."""
        person = self.people[user]
        try:
            await (person.press_start() if do == "start" else person.press_stop())
            check = partial(self._settled, user)
            await wait_until(check, ACT_LIMIT_S, f"the {do} of {user} is through")  # type: ignore[arg-type]
        except httpx.TransportError:
            await self.hub.gone()

    async def _settled(self, user: str) -> bool:
        if not self.hub.running:
            return True
        answer = await self.people[user].api("GET", f"/users/{user}")
        if answer.status_code != httpx.codes.OK:  # the proxy, for a hub that has just died
            return False
        server = answer.json()["servers"].get("", {})
        return not server or (server["ready"] and not server["pending"])

    async def _next(self) -> tuple[str, str]:
        """Whom to start or stop: stops come as often as starts, and some keep their servers over several rounds."""
        servers = await self.hub.servers()
        user = self.dice.choice(USERS)
        return user, "stop" if user in servers else "start"

    async def _idle(self, but: str) -> str:
        servers = await self.hub.servers()
        idle = [user for user in USERS if user not in servers and user != but]
        return self.dice.choice(idle) if idle and self.dice.random() < 0.5 else ""

    async def _free_user(self) -> str:
        """A user without a server, and a free GPU: one server is stopped where several are running."""
        servers = await self.hub.servers()
        if len(servers) >= MOST_SERVERS:
            await self.act(self.dice.choice(sorted(servers)), "stop")
        return self.dice.choice([user for user in USERS if user not in servers])

    def _broke(self, do: str, call: int, *, after: bool, reached: bool) -> None:
        """Note where this round broke the hub, and see that a place which it did not reach breaks no later one."""
        self.verdict.broken(do, call, after=after, reached=reached)
        self._calls = self.faults.calls
        self.faults.at(0, lambda: None)

    def _note(self, text: str) -> None:
        self.verdict.notes.append(f"round {self.verdict.rounds}: {text}; calls {self._calls}")
