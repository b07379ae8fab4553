"""`make stop` and `make clean`: end what `make run` started, and remove what it made. Homes are people's: they stay.

Only processes of our pid files are ended, and only containers, networks and images with our labels are removed.
"""

import argparse
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import docker
from docker.errors import APIError, DockerException

from deploy import build_images, buildkit, engine, processes
from deploy.steps import Problem, exit_with, state_folder, step
from deploy.up import HUB, PROXY, SIGN_IN
from spawner import netfilter
from spawner import settings as settings_file
from spawner.docker_api import BRIDGE_OPTION

__all__ = ["clean", "main", "remove_filters", "stop"]

OURS = "gpucampus.project=gpucampus"


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("stop", "clean"))
    what = parser.parse_args().what
    state = state_folder()
    try:
        stop(state)
        if what == "clean":
            clean(state, homes=os.environ.get("HOMES") == "1")
    except (Problem, DockerException, OSError) as error:
        exit_with(error)
    return 0


def stop(state: Path) -> None:
    """End hub, proxy and sign-in, and remove the containers of this hub's servers."""
    with step("Hub") as note:
        note.text = _ended(state / "run" / HUB)
    with step("Servers") as note:
        note.text = _remove_servers(_hub_name())
    for name, file in (("Proxy", PROXY), ("Sign-in", SIGN_IN)):
        with step(name) as note:
            note.text = _ended(state / "run" / file)


def clean(state: Path, *, homes: bool) -> None:
    """Remove our packet filter, images and network, and the state folder but for the homes."""
    with step("Packet filter") as note:
        note.text = remove_filters()
    with step("Images and network") as note:
        note.text = _remove_images_and_networks()
    with step("State") as note:
        if processes.stop(state / "run" / engine.PID_FILE, patience_s=30):
            note.text = "ended the Docker Engine that make run had started; "
        for entry in sorted(state.iterdir()) if state.is_dir() else ():
            if entry.name == "homes" and not homes:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        kept = state / "homes"
        note.text += f"kept {kept}: `make clean HOMES=1` removes it" if kept.exists() else "removed"


def remove_filters() -> str:
    """Remove the packet filters of our networks' bridges, and of the one that the settings name."""
    bridges = set()
    with suppress(settings_file.SettingsError):
        bridges.add(settings_file.load().network.bridge)
    if client := _client():
        options = (network.attrs["Options"] for network in client.networks.list(filters={"label": OURS}))
        bridges |= {option.get(BRIDGE_OPTION, "") for option in options} - {""}
    try:
        removed = sum(netfilter.remove(bridge) for bridge in sorted(bridges))
    except netfilter.FilterError as error:
        return f"stays: {error}"
    return f"{removed} removed" if removed else "none"


def _ended(file: Path) -> str:
    return "ended" if processes.stop(file, patience_s=30) else "did not run"


def _hub_name() -> str:
    """The name that this hub labels its containers with."""
    try:
        return settings_file.load().hub.name
    except settings_file.SettingsError:
        return "gpucampus"


def _client() -> docker.DockerClient | None:
    """The engine; None where none answers, so that the rest can still be done."""
    try:
        client = build_images.connect()
        client.ping()
    except DockerException:
        return None
    return client


def _remove_servers(hub: str) -> str:
    client = _client()
    if client is None:
        return "the engine does not answer: containers stay"
    containers = client.containers.list(all=True, filters={"label": f"gpucampus.hub={hub}"})
    for container in containers:
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code not in {404, 409}:  # gone, or being removed
                raise
    return f"{len(containers)} removed"


def _remove_images_and_networks() -> str:
    client = _client()
    if client is None:
        return "the engine does not answer: they stay"
    networks = client.networks.list(filters={"label": OURS})
    for network in networks:
        network.remove()
    used = []
    images = client.images.list(filters={"label": OURS})
    for image in images:
        try:
            client.images.remove(str(image.id), force=True)
        except APIError as error:
            if error.status_code == 409:
                used.append(str(image.id))
            elif error.status_code != 404:
                raise
    freed = buildkit.forget(client)
    said = f"{len(images) - len(used)} images, {len(networks)} networks" + (f"; {len(used)} in use" if used else "")
    return said + (f"; build cache of {freed / 1e9:.1f} GB" if freed else "")


if __name__ == "__main__":
    sys.exit(main())
