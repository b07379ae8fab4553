"""Debian's own registry on 127.0.0.1, for one test run."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rig.waiting import wait_until_sync

__all__ = ["running_registry"]

_CONFIG = """version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {data}}}, delete: {{enabled: true}}}}
http: {{addr: "{address}"}}
"""


@contextmanager
def running_registry(program: Path, folder: Path) -> Iterator[str]:
    """Start it in this process's network; gives its address as references begin with it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "registry.yml"
    config.write_text(_CONFIG.format(data=folder / "data", address=address))
    with (folder / "registry.log").open("w") as log:
        process = subprocess.Popen([str(program), "serve", str(config)], stdout=log, stderr=log)
    try:
        wait_until_sync(lambda: _answers(port), 30, f"the registry on {address} answers")
        yield address
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0
