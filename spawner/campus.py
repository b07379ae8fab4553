"""The campus network between this machine and the internet: its proxy, its certificate authority, its mirrors.

Only the standard library is used here: `make run` needs the variables before any package is installed.
"""

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

__all__ = [
    "BUNDLE",
    "BUNDLE_INSIDE",
    "Campus",
    "CampusError",
    "apply",
    "authority",
    "ensure_bundle",
    "inside",
    "proxies",
    "variables",
]

BUNDLE = "ca-bundle.pem"
BUNDLE_INSIDE = "/etc/gpucampus-ca.pem"
# Debian's, then Red Hat's
SYSTEM_BUNDLES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
# OpenSSL and so Python; requests; curl; pip; Node adds what it names to its own; git
CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
)
_LOCAL = ("localhost", ".localhost", "127.0.0.1", "::1")


class CampusError(ValueError):
    """The section [campus] of the settings cannot be used; the text is one line for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campus:
    """What stands between this machine and the internet; empty where nothing does."""

    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: tuple[str, ...] = ()
    ca_file: Path | None = None
    pip_index: str = ""
    npm_registry: str = ""


def proxies(campus: Campus, given: Mapping[str, str], subnet: IPv4Network) -> dict[str, str]:
    """Give the proxy variables: the settings' own, else those that are in the environment; empty without a proxy.

    This machine, the bridge's address and the containers never go through the proxy: the hub must reach its servers
    and its own proxy, and the servers must reach the hub.
    """
    http = campus.http_proxy or _given("http_proxy", given)
    https = campus.https_proxy or campus.http_proxy or _given("https_proxy", given)
    if not http and not https:
        return {}
    ours = (*_LOCAL, str(next(subnet.hosts())), str(subnet))
    direct = _unique([*campus.no_proxy, *_given("no_proxy", given).split(","), *ours])
    found = {"http_proxy": http, "https_proxy": https, "no_proxy": ",".join(direct)}
    return {key: value for name, value in found.items() if value for key in (name, name.upper())}


def variables(campus: Campus, given: Mapping[str, str], subnet: IPv4Network, bundle: Path | None) -> dict[str, str]:
    """Give what the programs on this machine need in their environment, and no more than differs from `given`."""
    wanted = proxies(campus, given, subnet) | _mirrors(campus)
    if bundle is not None:
        wanted |= dict.fromkeys(CA_VARIABLES, str(bundle))
    return {key: value for key, value in wanted.items() if given.get(key) != value}


def inside(campus: Campus, subnet: IPv4Network) -> dict[str, str]:
    """Give what every container has in its environment, so that pip, git and Node work in it.

    The environment of the hub is left out: a proxy with a password there is not for everybody.
    """
    found = proxies(campus, {}, subnet) | _mirrors(campus)
    if campus.ca_file is not None:
        found |= dict.fromkeys(CA_VARIABLES, BUNDLE_INSIDE)
    return found


def apply(campus: Campus, subnet: IPv4Network, state: Path) -> None:
    """Put the variables into this process's environment; CampusError where the certificates cannot be read."""
    bundle = ensure_bundle(campus.ca_file, state) if campus.ca_file is not None else None
    os.environ.update(variables(campus, os.environ, subnet, bundle))


def authority(ca_file: Path) -> str:
    """Read the campus's own certificates; CampusError where they are none."""
    try:
        own = ca_file.read_text(encoding="utf-8")
        ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:  # ssl.SSLError is one
        raise CampusError(
            f"campus.ca_file = {ca_file}: {error.strerror or error}; allowed is a file of certificates in PEM form"
        ) from error
    except UnicodeDecodeError as error:
        raise CampusError(f"campus.ca_file = {ca_file}: allowed is a file of certificates in PEM form") from error
    return own


def ensure_bundle(ca_file: Path, state: Path, system: Iterable[Path] = SYSTEM_BUNDLES) -> Path:
    """Write the system's certificates and the campus's own into one file that everybody may read; return its path."""
    own = authority(ca_file)
    known = next((path.read_text(encoding="utf-8") for path in system if path.exists()), "")
    text, bundle = f"{known.rstrip()}\n{own.rstrip()}\n".lstrip(), state / BUNDLE
    if not bundle.exists() or bundle.read_text(encoding="utf-8") != text:
        state.mkdir(parents=True, exist_ok=True)
        new = bundle.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        # containers hold the file that they were started with; a new one leaves it whole
        new.replace(bundle)
    return bundle


def _mirrors(campus: Campus) -> dict[str, str]:
    found = {"PIP_INDEX_URL": campus.pip_index, "npm_config_registry": campus.npm_registry}
    return {key: value for key, value in found.items() if value}


def _given(name: str, environment: Mapping[str, str]) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""


def _unique(hosts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(host.strip() for host in hosts if host.strip()))
