"""A real JupyterHub with little around it: the product's configuration and spawner, and the real proxy.

Sign-in and the servers' program are swapped (lean_parts.py), so that it needs neither provider nor images and a server
starts within a second.

All of it is asynchronous, since the fault proxy between hub and engine lives in the test's event loop.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from deploy.demo.gpus.make import INVENTORY, SimulatedGPUs, build
from deploy.node_packages import PROXY
from spawner import hub_api
from spawner.core.ledger import LABEL
from tests.rig.engine import PrivateEngine
from tests.rig.fault_proxy import FaultProxy
from tests.rig.provider import node_binary
from tests.rig.visitor import PORT, URL, client
from tests.rig.waiting import wait_until

__all__ = ["LeanHub", "four_gpus"]

ROOT = Path(__file__).resolve().parents[2]
PROXY_API, HUB_PORT, ISSUER = 8601, 8681, 8610  # in a network of the tests' own; the demo's are others
START_LIMIT_S = 90
_INHERITED = ("setpriv", "--pdeathsig", "KILL", "--")
_SETTINGS = """version = 1
state = {state}
catalog = {catalog}
config_dir = {config_dir}

[hub]
name = "lean"
public_url = "{url}"
hub_port = {hub_port}
proxy_api_port = {proxy_api}

[network]
name = "lean"
bridge = "lean0"
subnet = "172.30.64.0/24"

[sign_in]
issuer = "http://127.0.0.1:{issuer}"
client_id = "lean"
client_secret_file = {secret}

[roles.member]
groups = ["members"]
gpus = 1
modes = ["exclusive", "none"]
memory = "512M"
default_memory = "256M"
cpus = 0.5
max_runtime = "8h"
idle = "8h"

[homes]
root = {homes}

[images]
verify = "off"

[placement]
memory_overcommit = 10
cpu_overcommit = 100

[containers]
shm = "64M"
tmp = "64M"
start_timeout = "20s"
stop_timeout = "2s"

[gpus]
inventory = "nvml"
injection = "nodes"
simulated = true
library = {library}
device_dir = {device_dir}

[gpus.files]
{files}
"""
_CATALOG = """version = 1

[base]
image = "gpucampus-test/none"
suite = "bookworm"

[variants.probe]
title = "The tests' own image"
folder = "images/none"
image = {image}
default = true
"""
_CONFIG = """from pathlib import Path

from spawner import hub_api
from tests.rig.lean_parts import SERVER, Door, Look

c = get_config()
token = hub_api.ensure_token(Path({state}), hub_api.OPERATOR)
c.JupyterHub.authenticator_class = Door
c.Door.allow_all = True
c.JupyterHub.subdomain_host = ""
c.JupyterHub.extra_handlers = [("/look", Look)]
c.JupyterHub.services = [{{"name": "operator", "api_token": token}}]
c.JupyterHub.load_roles = [{{"name": "operator", "scopes": list(hub_api.SCOPES), "services": ["operator"]}}]
c.GPUDockerSpawner.cmd = ["python3", "-c", SERVER]
{more}
"""


def four_gpus(folder: Path) -> SimulatedGPUs:
    """Simulate four whole GPUs, joined by nothing."""
    head = INVENTORY.read_text(encoding="utf-8").split("[gpu 0]", 1)[0]
    sections = [
        f"[gpu {number}]\nuuid = GPU-1ea70000-c0de-4a10-8a10-00000000000{number}\nname = NVIDIA A100-SXM4-40GB\n"
        f"bus_id = 00000000:0{number}:00.0\ncompute_capability = 8.0\nmemory_mib = 40960\n"
        for number in range(4)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "inventory.ini").write_text(head + "\n".join(sections), encoding="utf-8")
    return build(folder)


class LeanHub:
    """One hub behind a fault proxy; `start` may be called again after `kill`."""

    def __init__(
        self, engine: PrivateEngine, faults: FaultProxy, image: str, folder: Path, *, config: Sequence[str] = ()
    ) -> None:
        self.engine = engine
        self.faults = faults
        self.state = folder
        self._image = image
        self._config = config
        self._client = client()
        self._process: asyncio.subprocess.Process | None = None
        self._proxy: asyncio.subprocess.Process | None = None
        self._issuer: asyncio.Server | None = None

    @classmethod
    @asynccontextmanager
    async def on(
        cls, engine: PrivateEngine, faults: FaultProxy, image: str, folder: Path, *, config: Sequence[str] = ()
    ) -> AsyncIterator["LeanHub"]:
        """A hub that answers, with its proxy; both, and every container, are gone at the end."""
        hub = cls(engine, faults, image, folder, config=config)
        hub._write_files()
        try:
            await hub._start_around()
            await hub.start()
            yield hub
        finally:
            await hub.close()

    # -- the process -----------------------------------------------------------------------------------------------

    async def start(self) -> float:
        """Start the hub and wait until it answers through its proxy; the seconds that took."""
        await self.launch()
        began = time.monotonic()
        await wait_until(self._answers, START_LIMIT_S, "the hub answers through its proxy")  # type: ignore[arg-type]
        return time.monotonic() - began

    async def launch(self) -> None:
        """Start the hub's process and wait for nothing."""
        self._process = await self._run(
            "hub",
            *(str(Path(sys.executable).with_name("jupyterhub")), "-f", str(ROOT / "jupyterhub_config.py")),
        )

    def kill(self) -> None:
        """End the hub as a crash does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    @property
    def running(self) -> bool:
        """Whether the hub's process has not ended."""
        return self._process is not None and self._process.returncode is None

    async def gone(self) -> None:
        """Wait until the process has ended."""
        if self._process is not None:
            await self._process.wait()

    def lose(self, *names: str) -> None:
        """Delete databases of a hub that does not run, with what SQLite keeps beside them."""
        for name in names:
            for file in self.state.glob(f"{name}*"):
                file.unlink()

    async def close(self) -> None:
        """End everything, and remove what is left on the engine."""
        self.kill()
        await self.gone()
        if self._proxy is not None:
            with suppress(ProcessLookupError):
                self._proxy.terminate()
            await self._proxy.wait()
        if self._issuer is not None:
            self._issuer.close()
        await self._client.aclose()
        for row in await asyncio.to_thread(self.containers):
            await asyncio.to_thread(self.engine.client.api.remove_container, row["Id"], force=True)

    # -- what is ----------------------------------------------------------------------------------------------------

    def containers(self) -> list[dict[str, Any]]:
        """What is really on the engine."""
        found: list[dict[str, Any]] = self.engine.client.api.containers(all=True, filters={"label": LABEL + "lease"})
        return found

    async def look(self) -> dict[str, Any]:
        """What the arbiter believes."""
        answer = await self._client.get("/hub/look", params={"reap": "1"})
        assert answer.status_code == httpx.codes.OK, f"{answer.status_code} {answer.text[:400]}"
        return dict(answer.json())

    async def servers(self) -> dict[str, dict[str, Any]]:
        """What the hub's REST API tells the operator of every server that is not stopped, by user."""
        token = hub_api.operator_token(self.state)
        answer = await self._client.get("/hub/api/users", headers={"Authorization": f"token {token}"})
        assert answer.status_code == httpx.codes.OK, f"{answer.status_code} {answer.text[:400]}"
        return {user["name"]: user["servers"][""] for user in answer.json() if user["servers"].get("")}

    async def command(self, *arguments: str) -> str:
        """Run `gpucampus` as the operator does; what it printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "spawner.cli", *arguments),
            cwd=ROOT,
            env=self._environment(),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await process.communicate()
        return printed.decode()

    def describe(self) -> str:
        """The ends of the logs; for a failing test."""
        parts = []
        for log in sorted(self.state.glob("*.log")):
            parts += [f"=== {log.name}", *log.read_text(encoding="utf-8", errors="replace").splitlines()[-80:]]
        return "\n".join(parts)

    # -- what is around it --------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        q = json.dumps
        shutil.rmtree(self.state, ignore_errors=True)
        for folder in ("secrets", "config.d", "homes"):
            (self.state / folder).mkdir(parents=True)
        (self.state / "secrets/client_secret").write_text("none\n")
        gpus = four_gpus(self.state / "gpus")
        (self.state / "catalog.toml").write_text(_CATALOG.format(image=q(self._image)))
        more = "\n".join(self._config)
        (self.state / "config.d/lean.py").write_text(_CONFIG.format(state=q(str(self.state)), more=more))
        self._settings.write_text(
            _SETTINGS.format(
                state=q(str(self.state)),
                catalog=q(str(self.state / "catalog.toml")),
                config_dir=q(str(self.state / "config.d")),
                url=URL,
                hub_port=HUB_PORT,
                proxy_api=PROXY_API,
                issuer=ISSUER,
                secret=q(str(self.state / "secrets/client_secret")),
                homes=q(str(self.state / "homes")),
                library=q(str(gpus.library)),
                device_dir=q(str(gpus.device_dir)),
                files="\n".join(f"{q(host)} = {q(inside)}" for host, inside in gpus.files.items()),
            )
        )

    @property
    def _settings(self) -> Path:
        return self.state / "settings.toml"

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "DOCKER_HOST": self.faults.url,
            "GPUCAMPUS_SETTINGS": str(self._settings),
            "PYTHONPATH": str(ROOT),
            "JUPYTERHUB_CRYPT_KEY": "ab" * 32,
            "CONFIGPROXY_AUTH_TOKEN": "lean",
        }

    async def _run(self, name: str, *command: str) -> asyncio.subprocess.Process:
        with (self.state / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(*_INHERITED, *command),
                cwd=self.state,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _start_around(self) -> None:
        """Start the proxy, and answer the one question that the configuration has for a provider."""
        self._issuer = await asyncio.start_server(_discovery, "127.0.0.1", ISSUER)
        self._proxy = await self._run(
            "proxy",
            *(node_binary(), str(PROXY), "--ip", "127.0.0.1", "--port", str(PORT)),
            *("--api-ip", "127.0.0.1", "--api-port", str(PROXY_API)),
        )

    async def _answers(self) -> bool:
        assert self.running, f"the hub ended:\n{self.describe()}"
        try:
            return (await self._client.get("/hub/health", timeout=5)).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


async def _discovery(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    issuer = f"http://127.0.0.1:{ISSUER}"
    names = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
    body = json.dumps({"issuer": issuer} | {name: f"{issuer}/{name}" for name in names}).encode()
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()
