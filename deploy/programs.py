"""What a hub is made of while it runs: the command and the environment of the hub, its proxy and its idle culler.

    python -m deploy.programs hub|proxy|culler     becomes that program; the systemd units run this

`make run` starts the same commands. Secrets are files below the state folder; a unit whose user may not read that gets
the ones it needs from systemd (LoadCredential).
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy import node_packages
from deploy.steps import ROOT
from spawner import campus
from spawner.campus import CampusError
from spawner.private_files import ensure_secret
from spawner.settings import Settings, SettingsError, load

__all__ = ["PROGRAMS", "Command", "culler", "hub", "proxy", "secret"]

BIN = Path(sys.executable).parent
CULLER_RULE = ROOT / "deploy/idle_culler_config.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, and what it needs in its environment besides the usual."""

    words: tuple[str, ...]
    env: Mapping[str, str]


def hub(settings: Settings) -> Command:
    """Give the hub."""
    return Command(
        words=(str(BIN / "jupyterhub"), "-f", str(ROOT / "jupyterhub_config.py")),
        env={
            "JUPYTERHUB_CRYPT_KEY": secret(settings.state, "crypt_key"),
            "CONFIGPROXY_AUTH_TOKEN": secret(settings.state, "proxy_token"),
        },
    )


def proxy(settings: Settings) -> Command:
    """Give the proxy; it sends each person's host name to that person's server."""
    part = settings.hub
    return Command(
        words=(
            *(str(node_packages.NODE), str(node_packages.PROXY)),
            *("--ip", "127.0.0.1", "--port", str(part.listen_port)),
            *("--api-ip", "127.0.0.1", "--api-port", str(part.proxy_api_port)),
            "--host-routing",
            *("--error-target", f"http://{settings.network.gateway}:{part.hub_port}/hub/error"),
        ),
        env={"CONFIGPROXY_AUTH_TOKEN": secret(settings.state, "proxy_token")},
    )


def culler(settings: Settings) -> Command:
    """Give the idle culler; where the hub has started it, the hub has also told it address and token."""
    shortest = min(role.idle for role in settings.roles.values())
    words = (sys.executable, "-m", "jupyterhub_idle_culler", f"--config={CULLER_RULE}", "--cull-every=60")
    env = {}
    if "JUPYTERHUB_API_TOKEN" not in os.environ:
        env = {
            "JUPYTERHUB_API_URL": f"http://{settings.network.gateway}:{settings.hub.hub_port}/hub/api",
            "JUPYTERHUB_API_TOKEN": secret(settings.state, "idle_culler_token"),
        }
    return Command(words=(*words, f"--timeout={shortest}"), env=env)


PROGRAMS: Mapping[str, Callable[[Settings], Command]] = {"hub": hub, "proxy": proxy, "culler": culler}


def secret(state: Path, name: str) -> str:
    """Read a secret of the hub; made at the first run, readable by root alone, and never half-written."""
    if credentials := os.environ.get("CREDENTIALS_DIRECTORY"):
        lent = Path(credentials) / name
        if lent.exists():
            return lent.read_text(encoding="ascii").strip()
    return ensure_secret(state / "secrets" / name)


def main() -> None:
    """Become the program that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=tuple(PROGRAMS))
    name = parser.parse_args().program
    try:
        settings = load()
        # the proxy and the culler speak to this machine alone; the bundle of certificates is the hub's to write
        if name == "hub":
            campus.apply(settings.campus.values(), settings.network.subnet, settings.state)
        command = PROGRAMS[name](settings)
    except (SettingsError, CampusError) as error:
        sys.exit(f"gpucampus: {error}")
    os.environ.update(node_packages.environment() | dict(command.env))
    os.execv(command.words[0], command.words)  # noqa: S606 - no shell is in between


if __name__ == "__main__":
    main()
