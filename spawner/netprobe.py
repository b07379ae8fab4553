"""The self-check's throw-away containers: what they are, and what they find when they knock at addresses.

They run as nobody, without capabilities and with a read-only root, like a server. They hold no lease. The engine
removes them when their minute is over, whatever became of us; `make stop` and the next check find the rest by label.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from spawner import throwaway
from spawner.docker_api import EngineRefuses, once, remove_once

__all__ = ["KIND", "PORT", "Answers", "Knock", "Probe", "probes"]

KIND = "netcheck"
PORT = 8888  # where a server would listen
LEFT_S = 120
_NOBODY = "65534:65534"
_MEMORY = 128 << 20
_CHILD = Path(__file__).with_name("_probe_child.py")
_PYTHON = ("python3", "-I", "-c")


@dataclass(frozen=True, slots=True)
class Knock:
    """An address to try; with a path, an HTTP request is made there."""

    address: str
    port: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of some knocks, in their order, and the container's IPv6 addresses.

    An answer is `open`, `http 200`, `timeout`, or the name of the error, such as ECONNREFUSED.
    """

    words: tuple[str, ...]
    ipv6: tuple[str, ...]


class Probe:
    """One running container on our network."""

    def __init__(self, client: Any, container_id: str, address: IPv4Address) -> None:
        self.address = address
        self._client = client
        self._id = container_id

    def knock(self, knocks: Sequence[Knock]) -> Answers:
        """Try addresses, all at once."""
        asked = json.dumps([[knock.address, knock.port, knock.path] for knock in knocks])
        command = [*_PYTHON, _CHILD.read_text(encoding="utf-8"), "knock", asked]
        run = self._client.exec_create(self._id, command)
        output = self._client.exec_start(run["Id"])
        try:
            found = json.loads(output)
        except ValueError:
            raise EngineRefuses(f"the image's Python did not run: {output.decode(errors='replace')[-200:]}") from None
        return Answers(words=tuple(found["answers"]), ipv6=tuple(found["ipv6"]))


@contextmanager
def probes(images: Sequence[str], *, hub: str, network: str, count: int) -> Iterator[tuple[Probe, ...]]:
    """Run containers of the first of these images that is here, and remove them; the engine's errors pass.

    EngineSaysGone names what is not there: none of the images, or the network.
    """
    labels = throwaway.labels(hub, KIND)
    with once("self-check") as client, ExitStack() as stack:
        for left in throwaway.left_over(client, labels):
            if time.time() - left["Created"] > LEFT_S:  # else another check may be at work
                _remove(left["Id"])
        image = throwaway.first_built(client, images)
        running = []
        for _ in range(count):
            made = client.create_container(
                image,
                [*_PYTHON, _CHILD.read_text(encoding="utf-8"), "listen", str(PORT)],
                entrypoint=[],
                user=_NOBODY,
                working_dir="/",
                environment={"NVIDIA_VISIBLE_DEVICES": "void"},
                labels=labels,
                host_config=client.create_host_config(
                    network_mode=network,
                    auto_remove=True,
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges"],
                    read_only=True,
                    mem_limit=_MEMORY,
                    memswap_limit=_MEMORY,
                    pids_limit=256,
                ),
            )
            stack.callback(_remove, made["Id"])
            client.start(made["Id"])
            found = client.inspect_container(made["Id"])["NetworkSettings"]["Networks"][network]["IPAddress"]
            if not found:
                raise EngineRefuses("a container for the self-check ended at once")
            running.append(Probe(client, made["Id"], IPv4Address(found)))
        yield tuple(running)


def _remove(container_id: str) -> None:
    """Remove a container that may be gone, or be going."""
    with suppress(EngineRefuses):
        remove_once(container_id)
