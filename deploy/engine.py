"""The Docker Engine of this machine: the one that answers, else Debian's, installed and started."""

import os
import shutil
from pathlib import Path

import docker
from docker.errors import DockerException

from deploy import preflight, processes
from deploy.steps import Problem, call, tell
from spawner.findings import Status

__all__ = ["PACKAGES", "PID_FILE", "apt_install", "ensure", "hubs_on", "missing", "root_folder"]

PID_FILE = "dockerd.pid"
PACKAGES = ("docker.io", "iptables")
START_S = 60


def missing() -> bool:
    """Whether no engine answers and none is installed, so that `ensure` would install one."""
    return _info() is None and shutil.which("dockerd") is None and not os.environ.get("DOCKER_HOST")


def root_folder() -> Path:
    """Where the engine keeps its images."""
    return Path(str((_info() or {}).get("DockerRootDir") or "/var/lib/docker"))


def hubs_on(network: str) -> list[str]:
    """The hubs whose servers are on a network, by their labels."""
    client = docker.from_env(timeout=10)
    try:
        found = client.containers.list(all=True, filters={"label": "gpucampus.hub", "network": network})
        return [str(container.labels["gpucampus.hub"]) for container in found]
    finally:
        client.close()


def ensure(state: Path) -> str:
    """Make sure that an engine answers that can serve us; return a few words about it."""
    info = _info()
    how = ""
    if info is None:
        if host := os.environ.get("DOCKER_HOST"):
            raise Problem(f"DOCKER_HOST is {host}, but no engine answers there: start it, or unset DOCKER_HOST.")
        if shutil.which("dockerd") is None:
            apt_install(list(PACKAGES), state)
            how = ", installed"
        info = _info() or _start(state)
    judged = preflight.engine(info, _version())
    if judged.status is Status.FAIL:
        raise Problem(preflight.tell([judged]))
    return f"Docker {info['ServerVersion']}{how}"


def apt_install(packages: list[str], state: Path) -> None:
    """Install Debian packages without their recommendations."""
    if shutil.which("apt-get") is None:
        raise Problem(f"Missing: {', '.join(packages)}. This is not Debian or Ubuntu: install them your system's way.")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    log, apt = state / "log/setup.log", ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
    call(["dpkg", "--configure", "-a"], log=log, env=env)  # what a killed run left half-done
    tell("reading the package lists")
    call([*apt, "update"], log=log, env=env)
    tell(f"installing {', '.join(packages)}")
    call([*apt, "install", "--yes", "--no-install-recommends", *packages], log=log, env=env)


def _version() -> dict[str, object]:
    client = docker.from_env(timeout=10)
    try:
        return dict(client.version())
    except (DockerException, OSError):
        return {}
    finally:
        client.close()


def _info() -> dict[str, object] | None:
    try:
        client = docker.from_env(timeout=10)
    except DockerException:
        return None
    try:
        return dict(client.info())
    except (DockerException, OSError):
        return None
    finally:
        client.close()


def _start(state: Path) -> dict[str, object]:
    """Start the engine: by systemd where that runs, else as a process of its own."""
    log = state / "log/dockerd.log"
    if Path("/run/systemd/system").is_dir():
        call(["systemctl", "enable", "--now", "docker"], log=state / "log/setup.log")
        running = lambda: True  # noqa: E731 - systemd restarts it
    else:
        file = state / "run" / PID_FILE
        own = state / "run/dockerd.own.pid"
        _forget_dead(own)
        command = ["dockerd", "--pidfile", str(own)]
        started = processes.read(file) or processes.start(file, command, log=log, env=os.environ)
        running = lambda: started.alive  # noqa: E731
    processes.wait_until(
        lambda: _info() is not None, what="The Docker Engine", running=running, log=log, limit_s=START_S
    )
    return _info() or {}


def _forget_dead(pid_file: Path, root: Path = Path("/")) -> None:
    """Remove the engine's own pid file of before a crash: it would not start while any process has that number."""
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
        name = (root / f"proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        name = ""
    if name != "dockerd":
        pid_file.unlink(missing_ok=True)
