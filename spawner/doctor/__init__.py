"""Looks at everything that a hub stands on and says what is wrong, each with its remedy.

A check takes a Machine, which is values and a root folder, and gives findings; the runner makes all checks side by side
with a time limit for each. docs/howto/doctor.md lists the checks.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spawner import campus, nvml
from spawner import settings as settings_file
from spawner.doctor.config import check_settings, traits
from spawner.doctor.disks import check_disks, homes
from spawner.doctor.engine import ask_engine, bridge, check_engine, images, network
from spawner.doctor.gpus import driver, inventory, toolkit, variants
from spawner.doctor.limits import check_limits
from spawner.doctor.machine import Check, Later, Machine
from spawner.doctor.memory import check_memory
from spawner.doctor.recipes import LIMIT_S as RECIPES_S
from spawner.doctor.recipes import check_recipes
from spawner.doctor.runner import Told, examine
from spawner.doctor.web import certificate, clock, ports, provider
from spawner.doctor.websocket import check_websocket
from spawner.settings import GPUSettings, SettingsError

__all__ = ["CHECKS", "Check", "Machine", "Told", "as_the_hub", "examine", "this_machine"]

_ENGINE = "systemctl restart docker"
_NAS = "findmnt; umount -l of the NAS that does not answer, then mount it again"
_NETWORK = "check the network and the name servers of this machine"

CHECKS: tuple[Check, ...] = (
    Check(name="settings", look=check_settings, hangs=_NAS, needs_settings=False),
    Check(name="configuration", look=traits, hangs="look for what waits in the files of config_dir", limit_s=75),
    Check(name="engine", look=check_engine, hangs=_ENGINE, needs_settings=False),
    Check(name="limit", look=check_limits, hangs=_ENGINE, limit_s=60),
    Check(name="memory", look=check_memory, hangs=_ENGINE),
    Check(name="bridge", look=bridge, hangs=_ENGINE),
    Check(name="network", look=network, hangs=_ENGINE, limit_s=60),
    Check(name="image", look=images, hangs=_ENGINE),
    Check(name="recipe", look=check_recipes, hangs=_ENGINE, limit_s=RECIPES_S + 10),
    Check(name="GPUs", look=inventory, hangs="nvidia-smi; dmesg | grep -i xid", needs_settings=False),
    Check(name="driver", look=driver, hangs="dmesg | grep -i nvidia", needs_settings=False),
    Check(name="variant", look=variants, hangs="nvidia-smi; dmesg | grep -i xid"),
    Check(name="toolkit", look=toolkit, hangs=_ENGINE, needs_settings=False),
    Check(name="homes", look=homes, hangs=_NAS, limit_s=90),
    Check(name="disk", look=check_disks, hangs=_NAS, limit_s=60),
    Check(name="time", look=clock, hangs=_NETWORK, needs_settings=False),
    Check(name="certificate", look=certificate, hangs=_NETWORK),
    Check(name="websocket", look=check_websocket, hangs="systemctl status nginx; systemctl restart gpucampus-hub"),
    Check(name="identity provider", look=provider, hangs=_NETWORK),
    Check(name="ports", look=ports, hangs="ss -tlnp"),
)


def this_machine() -> Machine:
    """The machine that this process runs on; nothing is asked yet. The settings may be unusable."""
    path, settings, trouble = settings_file.locate(), None, ""
    try:
        settings = settings_file.load(path)
    except SettingsError as error:
        trouble = str(error)
    gpus = settings.gpus if settings else GPUSettings()
    return Machine(
        engine=Later(ask_engine, missing="the container engine does not answer"),
        gpus=Later(lambda: asyncio.run(nvml.ask(gpus, socket.gethostname())), missing="the GPUs are unknown"),
        root=Path("/"),
        settings=settings,
        trouble=trouble,
        settings_path=path,
    )


@contextmanager
def as_the_hub(machine: Machine) -> Iterator[None]:
    """Let this process see the network as the hub does: by the proxy and with the certificates of the settings.

    The certificates are joined in a folder that goes again, since a look writes nothing into the state.
    """
    if machine.settings is None:
        yield
        return
    was, network = dict(os.environ), machine.settings.network
    with tempfile.TemporaryDirectory(prefix="gpucampus-doctor-") as folder:
        with suppress(campus.CampusError):  # which the check of the settings names
            campus.apply(machine.settings.campus.values(), network.subnet, Path(folder))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(was)
