"""Make everything the demo needs below the state folder; running it again changes only what is missing or old.

    python -m deploy.demo.setup [--state DIR] [--accounts]

Secrets, accounts with their passwords, the identity provider's files, simulated GPUs on a machine without a real one,
and settings.toml. Everything listens on loopback, and anything else is refused: these accounts are for trying out.

For a second hub beside another one: GPUCAMPUS_PORT moves the public address, and with it the proxy's API (+1), the
identity provider (+10), the hub (+81) and the names of hub, network and bridge; GPUCAMPUS_SUBNET moves the containers.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from urllib.parse import urlsplit

from deploy import outside
from deploy.demo.accounts import ACCOUNTS, ensure_accounts
from deploy.demo.gpus.make import SimulatedGPUs, SimulationError, build
from deploy.demo.machine import GPUKind, MachineError, gpu_kind
from spawner.private_files import make_secret, write_private
from spawner.settings import Settings, SettingsError, load

__all__ = ["Demo", "DemoError", "Ports", "accounts_table", "prepare"]

ROOT = Path(__file__).resolve().parents[2]
SECRETS = ("crypt_key", "cookie_secret", "proxy_token", "client_secret")
CLIENT = "gpucampus"
USUAL_PORT = 8000
HEADER = outside.DEMO_HEADER


class DemoError(RuntimeError):
    """The demo cannot be set up; the text is one sentence with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the demo listens and what its hub and network are called, so that two do not meet."""

    public: int = USUAL_PORT
    subnet: str = "172.30.0.0/20"

    @classmethod
    def from_environment(cls) -> "Ports":
        """Read GPUCAMPUS_PORT and GPUCAMPUS_SUBNET; DemoError names a value that cannot be used."""
        given = os.environ.get("GPUCAMPUS_PORT", str(USUAL_PORT))
        if not given.isdecimal() or not 1 <= int(given) <= 65535 - 81:
            raise DemoError(f"GPUCAMPUS_PORT = {given!r}: allowed is a port from 1 to {65535 - 81}")
        subnet = os.environ.get("GPUCAMPUS_SUBNET", cls().subnet)
        try:
            IPv4Network(subnet)
        except ValueError as error:
            raise DemoError(
                f"GPUCAMPUS_SUBNET = {subnet!r}: allowed is an IPv4 network such as 172.30.0.0/20"
            ) from error
        return cls(public=int(given), subnet=subnet)

    @property
    def proxy_api(self) -> int:
        """The proxy's own API."""
        return self.public + 1

    @property
    def provider(self) -> int:
        """The identity provider."""
        return self.public + 10

    @property
    def hub(self) -> int:
        """The hub's API, which the containers reach at the bridge's address."""
        return self.public + 81

    @property
    def name(self) -> str:
        """What the hub and its network are called; the usual one is plain."""
        return "gpucampus" if self.public == USUAL_PORT else f"gpucampus-{self.public}"

    @property
    def bridge(self) -> str:
        """The name of the containers' bridge, of at most 15 characters."""
        return f"gpucampus{0 if self.public == USUAL_PORT else self.public}"

    @property
    def url(self) -> str:
        """The public address."""
        return f"http://localhost:{self.public}"

    @property
    def issuer(self) -> str:
        """The identity provider's address."""
        return f"http://127.0.0.1:{self.provider}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What was set up."""

    folder: Path  # what the identity provider is started with
    url: str
    issuer: str
    passwords: dict[str, str]
    simulated: bool
    settings: Path


def prepare(state: Path) -> Demo:
    """Set up the demo; DemoError when this machine or a setting does not allow it."""
    ports = Ports.from_environment()
    state = state.resolve()
    folder = state / "demo"
    for made, mode in ((state, 0o755), (state / "secrets", 0o700), (folder, 0o755), (state / "homes", 0o755)):
        made.mkdir(mode=mode, parents=True, exist_ok=True)
    (state / "secrets").chmod(0o700)
    for name in SECRETS:
        make_secret(state / "secrets" / name)
    try:
        gpus = build(folder / "gpus") if gpu_kind() is GPUKind.SIMULATED else None
    except (MachineError, SimulationError) as error:
        raise DemoError(str(error)) from error
    settings = _ensure_settings(state, settings_text(state, ports, gpus))
    _write_provider(folder, settings)
    return Demo(
        folder=folder,
        url=settings.hub.public_url,
        issuer=settings.sign_in.issuer,
        passwords=ensure_accounts(folder),
        simulated=settings.gpus.simulated,
        settings=state / "settings.toml",
    )


def _ensure_settings(state: Path, text: str) -> Settings:
    """Write the settings unless somebody made them their own; refuse addresses that others could reach."""
    path = state / "settings.toml"
    if not path.exists() or path.read_text(encoding="utf-8").startswith(HEADER):
        write_private(path, text)
    try:
        settings = load(path)
    except SettingsError as error:
        raise DemoError(str(error)) from error
    for key, address in (("hub.public_url", settings.hub.public_url), ("sign_in.issuer", settings.sign_in.issuer)):
        if not _is_loopback(urlsplit(address).hostname or ""):
            raise DemoError(
                f"{path}: {key} = {address!r} can be reached by others, but the demo's accounts are only for trying "
                "out: use localhost here, and settings of your own (deploy/settings.example.toml) for a real hub"
            )
    return settings


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _write_provider(folder: Path, settings: Settings) -> None:
    """The files that idp.mjs reads: its port, and the hub as its only client."""
    url = settings.hub.public_url
    client = {
        "client_id": settings.sign_in.client_id,
        "client_name": "gpucampus",
        "client_uri": url,
        "client_secret": settings.sign_in.client_secret_file.read_text(encoding="utf-8").strip(),
        "redirect_uris": [f"{url}/hub/oauth_callback"],
        "post_logout_redirect_uris": [url, f"{url}/", f"{url}/hub/login", f"{url}/hub/logout"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "client_secret_post",
    }
    write_private(folder / "clients.json", json.dumps([client], indent=1))
    write_private(folder / "idp.json", json.dumps({"port": urlsplit(settings.sign_in.issuer).port}))


def settings_text(state: Path, ports: Ports, gpus: SimulatedGPUs | None) -> str:
    """The demo's settings file. A JSON string is a TOML string, too."""
    q = json.dumps
    return f"""{HEADER}
# Every key is explained in deploy/settings.example.toml.
version = 1
state = {q(str(state))}
config_dir = {q(str(state / "config.d"))}

[hub]
name = {q(ports.name)}
public_url = {q(ports.url)}
hub_port = {ports.hub}
proxy_api_port = {ports.proxy_api}

[network]
name = {q(ports.name)}
bridge = {q(ports.bridge)}
subnet = {q(ports.subnet)}

[campus]
{_campus_text()}

[sign_in]
issuer = {q(ports.issuer)}
client_id = {q(CLIENT)}
client_secret_file = {q(str(state / "secrets" / "client_secret"))}
title = "Demo University"
admin_groups = ["hub-admins"]

[roles.student]
groups = ["students"]
gpus = 1
modes = ["exclusive", "mig", "none"]
memory = "4G"
default_memory = "1G"
cpus = 1
max_runtime = "8h"
idle = "1h"

[roles.teacher]
groups = ["teachers"]
gpus = 1
modes = ["exclusive", "mig", "shared", "none"]
memory = "8G"
default_memory = "2G"
cpus = 2
max_runtime = "12h"
idle = "2h"

[roles.researcher]
groups = ["researchers"]
gpus = 2
modes = ["exclusive", "shared", "none"]
memory = "16G"
default_memory = "2G"
cpus = 2
max_runtime = "3d"
idle = "4h"

[homes]
root = {q(str(state / "homes"))}

{_gpus_text(gpus)}"""


def _campus_text() -> str:
    """What stands between this machine and the internet, as the environment says."""
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in outside.demo_section(os.environ).items())


def _gpus_text(gpus: SimulatedGPUs | None) -> str:
    if gpus is None:
        return '[gpus]\ninventory = "nvml"\ninjection = "nvidia"\nshares_per_gpu = 2\n'
    files = "\n".join(f"{json.dumps(host)} = {json.dumps(inside)}" for host, inside in gpus.files.items())
    return f"""[gpus]
inventory = "nvml"
injection = "nodes"
shares_per_gpu = 2
simulated = true
library = {json.dumps(str(gpus.library))}
device_dir = {json.dumps(str(gpus.device_dir))}

[gpus.files]
{files}
"""


def accounts_table(passwords: dict[str, str]) -> str:
    """The accounts with their passwords, as `make run` prints them at its end."""
    rows = [("Account", "Password", "May have")]
    rows += [(account.login, passwords[account.login], account.may) for account in ACCOUNTS]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Set up the demo below the state folder.")
    parser.add_argument("--state", type=Path, default=Path(os.environ.get("GPUCAMPUS_STATE", ROOT / ".state")))
    parser.add_argument("--accounts", action="store_true", help="also print address and accounts")
    arguments = parser.parse_args()
    try:
        demo = prepare(arguments.state)
    except DemoError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.accounts:
        print(f"{demo.url}{'  (GPUs are simulated)' if demo.simulated else ''}\n{accounts_table(demo.passwords)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
