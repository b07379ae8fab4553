"""How this machine reaches the internet: the proxy, the certificates and the mirrors of settings and environment.

    python3 -m deploy.outside     prints what a shell is to export before it fetches anything

Only the standard library is used: this runs before any package is installed.
"""

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spawner import campus
from spawner.campus import Campus, CampusError

__all__ = ["DEMO_HEADER", "Outside", "apply", "debian_mirror", "demo_section", "exports", "main", "read"]

ROOT = Path(__file__).resolve().parent.parent
DEMO_HEADER = (
    "# Written by `make run` for the demo, and written again when it differs. Remove this line to keep changes."
)
MIRROR = "GPUCAMPUS_APT_MIRROR"
DEBIAN = "http://deb.debian.org"
SUBNET = "172.30.0.0/20"
_HOST = re.compile(r"[0-9A-Za-z.:/*-]{1,253}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What was found in settings and environment."""

    campus: Campus
    apt_mirror: str
    subnet: IPv4Network


def read(env: Mapping[str, str], root: Path = ROOT) -> Outside:
    """Read the operator's settings file where there is one, else the environment (see `demo_section`).

    Values are not judged here: the hub does so before it starts. CampusError where the file is no TOML.
    """
    data = _settings(env, root)
    if data is None:
        part: Mapping[str, Any] = demo_section(env)
        subnet = env.get("GPUCAMPUS_SUBNET", SUBNET)
    else:
        part, subnet = _table(data, "campus"), str(_table(data, "network").get("subnet", SUBNET))
    file = part.get("ca_file")
    # the same as in the settings: relative paths count from the checkout
    ca_file = root / str(file) if file else None
    try:
        network = IPv4Network(subnet)
    except ValueError:
        network = IPv4Network(SUBNET)
    return Outside(
        campus=Campus(
            http_proxy=str(part.get("http_proxy", "")),
            https_proxy=str(part.get("https_proxy", "")),
            no_proxy=tuple(str(host) for host in part.get("no_proxy", ())),
            ca_file=ca_file,
            pip_index=str(part.get("pip_index", "")),
            npm_registry=str(part.get("npm_registry", "")),
        ),
        apt_mirror=str(part.get("apt_mirror", "")),
        subnet=network,
    )


def exports(env: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """Give the variables that differ from what is in the environment, and write the bundle of certificates."""
    found = read(env, root)
    state = Path(env.get("GPUCAMPUS_STATE") or root / ".state")
    bundle = campus.ensure_bundle(found.campus.ca_file, state) if found.campus.ca_file is not None else None
    wanted = campus.variables(found.campus, env, found.subnet, bundle)
    if found.apt_mirror and env.get(MIRROR) != found.apt_mirror:
        wanted[MIRROR] = found.apt_mirror
    return wanted


def apply() -> None:
    """Put the variables into this process's environment; CampusError says in one line what is wrong."""
    os.environ.update(exports(os.environ))


def debian_mirror() -> str:
    """The address above /debian and /debian-security that the base image's packages come from."""
    return (os.environ.get(MIRROR) or DEBIAN).rstrip("/")


def demo_section(env: Mapping[str, str]) -> dict[str, Any]:
    """Give the section [campus] of the demo's settings: what the environment says, for its servers, too.

    A proxy with a password stays in the environment, since every person could read it in their server.
    """
    found: dict[str, Any] = {}
    for name in ("http_proxy", "https_proxy"):
        value = env.get(name) or env.get(name.upper()) or ""
        parts = urlsplit(value)
        if parts.scheme == "http" and parts.hostname and not parts.username and parts.path in {"", "/"}:
            found[name] = value
    if found:
        given = (env.get("no_proxy") or env.get("NO_PROXY") or "").split(",")
        found["no_proxy"] = [host.strip() for host in given if _HOST.fullmatch(host.strip())]
    for name in ("ca_file", "pip_index", "apt_mirror", "npm_registry"):
        if named := env.get(f"GPUCAMPUS_{name.upper()}"):
            found[name] = named
    return found


def _settings(env: Mapping[str, str], root: Path) -> Mapping[str, Any] | None:
    """The operator's settings as spawner.settings finds them; None where the demo's hold, which come from `env`."""
    named = env.get("GPUCAMPUS_SETTINGS")
    state = Path(env.get("GPUCAMPUS_STATE") or root / ".state")
    places = [Path(named)] if named else [root / "settings.toml", state / "settings.toml"]
    file = next((place for place in places if place.exists()), None)
    if file is None:
        return None
    try:
        text = file.read_text(encoding="utf-8")
        return None if text.startswith(DEMO_HEADER) else tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CampusError(f"{file}: not valid TOML ({error})") from error


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name, {})
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Print the exports."""
    try:
        found = exports(os.environ)
    except CampusError as error:
        print(error, file=sys.stderr)
        return 1
    for name, value in found.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
