"""Docker's own builder, BuildKit, through Docker's command-line client.

The engine's older build API writes every file of an image three times; BuildKit writes it once, and mounts the wheels
instead of copying them. Docker's client speaks with it: the 20.10 of Debian 12 by itself, newer ones with buildx.
"""

import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path

import docker

from deploy.steps import tell

__all__ = ["BuildError", "build", "cached", "client", "forget", "forget_sources", "missing_packages"]

MARK = "gpucampus-build"  # in the instructions of our Dockerfiles; the engine shows them with its build cache
BUNDLED = (18, 23)  # the client's versions from and before which BuildKit needs no buildx
_VERTEX = re.compile(r"#\d+ \[[^\]]*?(\d+/\d+)\] (.*)")


class BuildError(RuntimeError):
    """An image cannot be built; the text is for the operator."""


def client() -> Path:
    """The first of Docker's clients on PATH that can use BuildKit; BuildError where none can."""
    for found in _clients():
        if _can_build(found):
            return found
    raise BuildError("Docker's client with buildx is missing, which builds images: `apt-get install docker-buildx`.")


def missing_packages() -> list[str]:
    """The Debian packages that bring such a client; Debian 12's engine brings one by itself."""
    if any(_can_build(found) for found in _clients()):
        return []
    return ["docker-buildx", *([] if _clients() else ["docker-cli"])]


def build(
    context: Path,
    dockerfile: Path,
    reference: str,
    *,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    network: str | None,
    docker_host: str | None,
) -> None:
    """Build a context and tag what comes out; BuildError with the builder's own last words where it fails."""
    command = [str(client()), "build", "--progress=plain", f"--tag={reference}", f"--file={dockerfile}"]
    command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
    command += [f"--label={name}={value}" for name, value in labels.items()]
    command += [f"--network={network}"] if network else []
    # the builder of the engine itself, whichever another tool has chosen; it adds nothing that we did not ask for
    env = os.environ | {"DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    if docker_host:
        env["DOCKER_HOST"] = docker_host
    said: deque[str] = deque(maxlen=40)
    with subprocess.Popen(
        [*command, str(context)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
    ) as process:
        try:
            for line in process.stdout or ():
                said.append(line.rstrip())
                if vertex := _VERTEX.match(line):
                    tell(f"step {vertex[1]}: {vertex[2]}"[:120])
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise BuildError(f"{reference} could not be built:\n" + "\n".join(list(said)[-25:]))


def forget(engine: docker.DockerClient) -> int:
    """Remove from the engine's build cache what our builds have left there; return how much it was, in bytes.

    What images or others' builds still use stays.
    """
    freed = 0
    while ours := {name for name, entry in _cached(engine).items() if MARK in entry.get("Description", "")}:
        if not (now := _prune(engine, ours)):
            break
        freed += now
    return freed


def forget_sources(engine: docker.DockerClient, before: Collection[str]) -> None:
    """Remove the copies of contexts that came into the build cache since `before`: wheels, which are kept elsewhere."""
    now = _cached(engine).items()
    _prune(engine, {name for name, entry in now if entry.get("Type") == "source.local"}.difference(before))


def cached(engine: docker.DockerClient) -> frozenset[str]:
    """The ids of all that is in the engine's build cache."""
    return frozenset(_cached(engine))


def _cached(engine: docker.DockerClient) -> dict[str, dict[str, str]]:
    return {entry["ID"]: entry for entry in engine.api.df().get("BuildCache") or []}


def _prune(engine: docker.DockerClient, names: Collection[str]) -> int:
    """Remove entries; one that another stands on stays until that one has gone. The bytes that it gave."""
    freed = 0
    for name in names:
        answer = engine.api.prune_builds(filters={"id": name}, all=True)  # type: ignore[arg-type] # newer than the stub
        freed += int(answer["SpaceReclaimed"] or 0)
    return freed


def _clients() -> list[Path]:
    found = [shutil.which("docker", path=folder) for folder in os.get_exec_path()]
    return [Path(program) for program in found if program]


def _can_build(program: Path) -> bool:
    if subprocess.run([program, "buildx", "version"], check=False, capture_output=True).returncode == 0:
        return True
    said = subprocess.run([program, "--version"], check=False, capture_output=True, text=True).stdout
    number = re.search(r"version (\d+)\.", said)
    return number is not None and BUNDLED[0] < int(number[1]) < BUNDLED[1]
