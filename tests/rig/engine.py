"""A Docker Engine that belongs to the test run alone.

It has its own data-root, exec-root, socket, pidfile and containerd, lives in the run's network namespace (namespace.py)
with iptables on, and dies with the run: by its pidfile at the end, by the parent-death signal when the run is killed.
Its images are kept between runs; containers, networks and volumes are not.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import docker
from docker.models.containers import Container

from deploy.build_images import cache_folder
from deploy.demo.gpus.make import SimulatedGPUs
from tests.rig.namespace import outside
from tests.rig.waiting import wait_until_sync

__all__ = ["HOOKS", "PrivateEngine"]

ROOT = Path(__file__).resolve().parents[2]
HOOKS = Path(__file__).resolve().parent / "hookbin"
START_LIMIT_S = 60
STOP_LIMIT_S = 40


class PrivateEngine:
    """One private engine; `start` and `stop` belong to the fixture."""

    def __init__(
        self, name: str, *, dockerd: Path, cache: Path, gpus: SimulatedGPUs, config: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.gpus = gpus
        self._dockerd = dockerd
        self._config = dict(config)
        self._data = cache / name
        # The path of a Unix socket has at most 107 bytes, so what runs is in /tmp; in the same place each time, so that
        # an engine finds what a killed one left behind.
        mark = hashlib.sha256(str(self._data.resolve()).encode()).hexdigest()[:8]
        self._run = Path(tempfile.gettempdir()) / f"gpucampus-engine-{name}-{mark}"
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._client: docker.DockerClient | None = None

    @property
    def url(self) -> str:
        """The engine's address, as DOCKER_HOST has it."""
        return f"unix://{self._run / 'sock'}"

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with every engine access turned to this engine."""
        return {**os.environ, "DOCKER_HOST": self.url}

    @property
    def client(self) -> docker.DockerClient:
        """A client for looking from outside."""
        if self._client is None:
            self._client = docker.DockerClient(base_url=self.url, timeout=60)
        return self._client

    @property
    def cgroup_version(self) -> str:
        """ "1" or "2"; the stand-in hook knows 1 only."""
        return str(self.client.info()["CgroupVersion"])

    def start(self) -> None:
        """Start and clean the engine; AssertionError when it does not come up or cannot limit memory."""
        self._data.mkdir(parents=True, exist_ok=True)
        self._run.mkdir(mode=0o711, exist_ok=True)
        self._claim_data()
        self._end_leftover()
        self._launch()
        self.wait()
        self._remove_all()
        assert self.client.info()["MemoryLimit"], (
            "The container engine reports MemoryLimit=false: limits would be dropped silently, so no test of them "
            "counts. Enable the memory controller (cgroup_enable=memory on the kernel's command line)"
        )

    def restart(self) -> None:
        """Kill the engine as a crash does and start it again; containers, without live-restore, end with it.

        To be called from the main thread, since the engine ends with the thread that started it; then `wait`.
        """
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        # its containerd dies with it; where process 1 does not reap, the next engine would wait for the zombie
        containerd = self._run / "exec/containerd/containerd.pid"
        with suppress(OSError, ValueError):
            os.kill(int(containerd.read_text()), signal.SIGKILL)
        containerd.unlink(missing_ok=True)
        self._launch()

    def wait(self) -> None:
        """Wait until it answers; AssertionError when it does not come up."""
        wait_until_sync(self._answers, START_LIMIT_S, f"the private engine {self.name} answers")

    def _launch(self) -> None:
        config = self._run / "daemon.json"
        config.write_text(json.dumps(self._config), encoding="utf-8")
        path = f"{HOOKS}:{self._dockerd.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [
            *("setpriv", "--pdeathsig", "TERM", "--", str(self._dockerd), "--config-file", str(config)),
            *("--data-root", str(self._data / "data"), "--exec-root", str(self._run / "exec")),
            *("--pidfile", str(self._run / "pid"), "--host", self.url, "--iptables=true", "--ip6tables=false"),
            *("--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/gpucampus-test"),
            *("--userland-proxy=false", "--shutdown-timeout", "3"),
        ]
        with (self._run / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": path, "GPUCAMPUS_SIM_FOLDER": str(self.gpus.folder)},
                start_new_session=True,  # Ctrl-C goes to pytest, which ends the engine after the tests' own clean-up
            )

    def stop(self) -> None:
        """Remove what the tests made and end the engine; its images stay."""
        if self._lock is None:  # another run's engine is there, and none of its files are ours
            return
        try:
            if self._process is not None and self._process.poll() is None:
                self._remove_all()
        finally:
            if self._client is not None:
                self._client.close()
            self._terminate()
            # an engine mounts its data on itself, and after a crash nobody takes that away
            subprocess.run(["umount", str(self._data / "data")], check=False, capture_output=True)
            shutil.rmtree(self._run, ignore_errors=True)
            self._lock.close()

    @contextmanager
    def container(self, image: str, command: list[str], **options: Any) -> Iterator[Container]:
        """A created container that is removed at the end; the test starts it."""
        made = self.client.containers.create(image, command, **options)
        try:
            yield made
        finally:
            made.remove(force=True)

    def output_of(self, image: str, command: list[str], **options: Any) -> str:
        """Run a command to its end in a container of its own and return what it printed; it must succeed."""
        with self.container(image, command, **options) as made:
            made.start()
            status = made.wait(timeout=60)["StatusCode"]
            printed = made.logs().decode()
            assert status == 0, f"{command[0]} ended with {status}: {printed}"
            return printed

    def output_in(self, container: Container, command: list[str], **options: Any) -> str:
        """Run a command in a running container and return what it printed; it must succeed."""
        status, printed = container.exec_run(command, **options)
        text = printed.decode() if isinstance(printed, bytes) else ""
        assert status == 0, f"{command[0]} ended with {status}: {text}"
        return text

    def load_image(self, tag: str, tarball: Path, changes: list[str]) -> str:
        """Import a tarball of a root file system under a tag unless it is there; the image's id."""
        try:
            return str(self.client.images.get(tag).id)
        except docker.errors.ImageNotFound:
            repository, _, label = tag.partition(":")
            self.client.api.import_image(src=str(tarball), repository=repository, tag=label, changes=changes)
            return str(self.client.images.get(tag).id)

    def build_variant(self, variant: str) -> str:
        """Build a variant of the catalog into this engine unless it is current; the image's id."""
        command = outside([sys.executable, "-m", "deploy.build_images", variant])
        # the record of it must not replace that of the checkout's own hub
        records = self._data / "records"
        env = self.environment | {"GPUCAMPUS_CACHE": str(cache_folder()), "GPUCAMPUS_STATE": str(records)}
        env["GPUCAMPUS_SETTINGS"] = str(records / "settings.toml")
        done = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"the variant {variant} could not be built:\n{done.stdout}{done.stderr}"
        return done.stdout.split(": ", 1)[1].split(" ", 1)[0]

    def describe(self) -> str:
        """State, last output and settings of every container, and the engine's last words; for a failing test."""
        parts = []
        try:
            containers = self.client.containers.list(all=True)
        except (docker.errors.DockerException, OSError) as error:
            return f"(the engine does not answer: {error})\n{self.log_tail()}"
        for container in containers:
            attributes = container.attrs
            shown = {key: attributes[key] for key in ("State", "HostConfig", "Mounts")} | {
                "Env": attributes["Config"]["Env"],
                "Labels": attributes["Config"]["Labels"],
            }
            parts += [f"=== {container.name} ({container.short_id}) {container.status}"]
            parts += [container.logs(tail=40).decode(errors="replace"), json.dumps(shown, indent=1)]
        parts += [f"=== engine {self.name}", self.log_tail()]
        return "\n".join(parts)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the engine's log."""
        try:
            text = (self._run / "log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def _claim_data(self) -> None:
        lock = (self._data / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise AssertionError(
                f"Another test run uses the engine in {self._data}: wait for its end, or give this run a folder of its "
                "own with GPUCAMPUS_TEST_STATE"
            ) from error
        self._lock = lock

    def _answers(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the private engine {self.name} ended with {code}:\n{self.log_tail()}"
        try:
            return bool(self.client.ping())
        except (docker.errors.DockerException, OSError):
            return False

    def _remove_all(self) -> None:
        for container in self.client.containers.list(all=True):
            container.remove(force=True)
        for network in self.client.networks.list(filters={"type": "custom"}):
            network.remove()
        self.client.api.prune_volumes()

    def _end_leftover(self) -> None:
        """End an engine that a killed run left: the one in the pidfile, if it is really ours."""
        try:
            pid = int((self._run / "pid").read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return
        if str(self._data / "data").encode() in arguments:
            os.kill(pid, 15)
            wait_until_sync(lambda: not Path(f"/proc/{pid}").exists(), STOP_LIMIT_S, f"the leftover engine {pid} ends")

    def _terminate(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
