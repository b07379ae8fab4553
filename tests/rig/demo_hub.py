"""The whole of `make run` on the private engine: proxy, identity provider and hub, with the demo's accounts."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from deploy.build_images import cache_folder
from deploy.image_recipe import read_catalog
from tests.rig.engine import PrivateEngine
from tests.rig.waiting import wait_until_sync

__all__ = ["DemoHub"]

ROOT = Path(__file__).resolve().parents[2]
URL = "http://localhost:8000"  # in a network of the tests' own the usual ports are free
START_LIMIT_S = 150
STOP_LIMIT_S = 60


class DemoHub:
    """A hub of the tests' own; `start` does what `make run` does, and may be called again after `kill` or `end`."""

    url = URL

    def __init__(self, engine: PrivateEngine, state: Path) -> None:
        self.engine = engine
        self.state = state
        self._up: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the commands of this hub run with."""
        return self.engine.environment | {
            "GPUCAMPUS_STATE": str(self.state),
            "GPUCAMPUS_SETTINGS": str(self.state / "settings.toml"),
            "GPUCAMPUS_CACHE": str(cache_folder()),
        }

    @property
    def accounts(self) -> dict[str, str]:
        """The passwords by account."""
        return dict(json.loads((self.state / "demo/accounts.json").read_text(encoding="utf-8")))

    @property
    def pid(self) -> int:
        """The hub's own process."""
        return int(json.loads((self.state / "run/hub.pid").read_text(encoding="utf-8"))["pid"])

    def prepare(self) -> None:
        """Clear what a killed run left, and see that the image is there: building it needs the internet."""
        if self.state.exists():
            self.command("-m", "deploy.down", "stop")
            shutil.rmtree(self.state)
        self.state.mkdir(parents=True)
        self.engine.build_variant(read_catalog().usual[0].name)

    def start(self) -> None:
        """Run `deploy.up` until the hub answers through its proxy."""
        log = self.state / "log/make-run.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._up = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "deploy.up"],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until_sync(self._answers, START_LIMIT_S, "the hub answers through its proxy")

    @property
    def running(self) -> bool:
        """Whether `start` has been called and the hub has not ended since."""
        return self._up is not None and self._up.poll() is None

    def kill(self) -> None:
        """Kill the hub as a crash would; proxy, identity provider and servers go on."""
        os.kill(self.pid, signal.SIGKILL)
        self._gone()

    def end(self) -> None:
        """End the hub as Ctrl-C does."""
        if self._up is not None and self.running:
            self._up.terminate()
            self._gone()

    def stop(self) -> None:
        """End everything, as `make stop` does."""
        self.end()
        self.command("-m", "deploy.down", "stop")

    def command(self, *arguments: str, status: int = 0) -> str:
        """Run Python with arguments in this hub's environment; what it printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, (
            f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def describe(self) -> str:
        """The ends of all logs, then the engine's part; for a failing test."""
        parts = []
        for log in sorted((self.state / "log").glob("*.log")):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-60:]
            parts += [f"=== {log.name}", *lines]
        return "\n".join([*parts, self.engine.describe()])

    def _answers(self) -> bool:
        assert self._up is not None
        assert self._up.poll() is None, f"make run ended with {self._up.returncode}:\n{self.describe()}"
        try:
            # by number: a name would need a resolver, which this network has not
            answer = httpx.get(
                f"{URL.replace('localhost', '127.0.0.1')}/hub/health", headers={"Host": "localhost:8000"}
            )
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def _gone(self) -> None:
        assert self._up is not None
        self._up.wait(STOP_LIMIT_S)
