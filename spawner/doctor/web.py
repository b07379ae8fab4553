"""What lies between people and the hub: the clock, the certificate, the identity provider, and the ports."""

import ctypes
import ipaddress
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from spawner.core import proc_net
from spawner.doctor.machine import Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding

__all__ = [
    "Port",
    "certificate",
    "clock",
    "judge_certificate",
    "judge_clock",
    "judge_ports",
    "listening",
    "ports",
    "provider",
]

LIMIT_S = 8
SKEW_WARN_S, SKEW_FAIL_S = 10, 120
EXPIRY_WARN_DAYS = 21
_SYNC = "timedatectl set-ntp true (or apt-get install -y systemd-timesyncd)"
_UNSYNCHRONISED = 0x40
_START = "start the hub: make run, or systemctl start gpucampus-hub"


# -- time -----------------------------------------------------------------------------------------------------------


def clock(machine: Machine) -> Iterator[Finding]:
    """Say whether the clock is kept right, and how far it is from the identity provider's."""
    skew = None
    if machine.settings is not None:
        with suppress(OSError, ValueError, TypeError):
            skew = _skew(machine.settings.sign_in.issuer)
    yield judge_clock(synchronised=_synchronised(), skew_s=skew)


def judge_clock(*, synchronised: bool | None, skew_s: float | None) -> Finding:
    """Sign-in tokens hold for minutes, so a wrong clock turns everybody away; None is not known."""
    check = "time"
    said = "" if skew_s is None else f"{abs(skew_s):.0f} s from the identity provider's"
    if skew_s is not None and abs(skew_s) >= SKEW_FAIL_S:
        return fail(check, f"the clock is {said}, so sign-in fails and times in the records are wrong", _SYNC)
    if skew_s is not None and abs(skew_s) >= SKEW_WARN_S:
        return warn(check, f"the clock is {said}", _SYNC)
    if synchronised is False:
        return warn(check, f"nothing keeps the clock right{', which is ' + said if said else ''}", _SYNC)
    return ok(check, f"the clock is {'kept right' if synchronised else 'as it is'}{', ' + said if said else ''}")


def _synchronised() -> bool | None:
    """Whether a time service disciplines the kernel's clock; None where the kernel does not say."""
    timex = (ctypes.c_long * 32)()  # status is an int after modes, offset, freq, maxerror and esterror
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return not ctypes.c_int(timex[5]).value & _UNSYNCHRONISED


def _skew(issuer: str) -> float:
    """Seconds that this clock is ahead of the provider's, to the second; any answer has the time."""
    request = urllib.request.Request(issuer, method="HEAD")  # noqa: S310 - the settings allow http(s) only
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:
        date = error.headers["Date"]
    there = parsedate_to_datetime(date)
    return max(0.0, abs((datetime.now(UTC) - there).total_seconds()) - 1)


# -- certificate ----------------------------------------------------------------------------------------------------


def certificate(machine: Machine) -> Iterator[Finding]:
    """Say whether browsers accept the certificate, for the hub and for each person's own address."""
    url = urlsplit(machine.set.hub.public_url)
    host = url.hostname or ""
    if url.scheme == "http":
        if host == "localhost" or host.endswith(".localhost") or _loopback(host):
            yield ok("certificate", f"{host} needs none: it is this machine only")
            return
        text = "hub.public_url is http: passwords of sessions and notebooks cross the network in clear"
        yield fail("certificate", text, "put nginx with TLS before the hub and set hub.public_url to https://...")
        return
    port = url.port or 443
    try:
        found = _presented(host, port)
    except ssl.SSLCertVerificationError as error:
        yield fail("certificate", f"browsers refuse it: {error.verify_message}", _chain_remedy(error.verify_message))
    except (OSError, ssl.SSLError) as error:
        remedy = "systemctl status nginx; check the address in DNS"
        yield fail("certificate", f"{host}:{port} does not answer with TLS: {error}", remedy)
    else:
        yield from judge_certificate(found, host, datetime.now(UTC))
    yield from _wildcard(host)


def judge_certificate(found: Mapping[str, Any], host: str, now: datetime) -> Iterator[Finding]:
    """Say of a certificate whose chain is good how long it holds and which names it is for."""
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), UTC)
    days = (ends - now).days
    if ends <= now:
        yield fail(
            "certificate", f"it ended on {ends:%Y-%m-%d}", "renew it (certbot renew), then systemctl reload nginx"
        )
    elif days < EXPIRY_WARN_DAYS:
        text = f"it ends in {days} days, on {ends:%Y-%m-%d}"
        yield warn("certificate", text, "renew it (certbot renew), then systemctl reload nginx")
    else:
        yield ok("certificate", f"it is good until {ends:%Y-%m-%d}")
    names = {str(name).lower() for kind, name in found.get("subjectAltName", ()) if kind == "DNS"}
    wanted = (host, f"*.{host}")
    lacking = [name for name in wanted if name not in names and not (name == host and _covered(host, names))]
    if lacking:
        text = f"it is not for {' and '.join(lacking)}; each person has an address of their own below {host}"
        yield fail("certificate names", text, f"order one for {host} and *.{host} (certbot needs the DNS challenge)")
    else:
        yield ok("certificate names", f"{host} and *.{host}")


def _covered(host: str, names: set[str]) -> bool:
    return f"*.{host.partition('.')[2]}" in names


def _presented(host: str, port: int) -> Mapping[str, Any]:
    context = ssl.create_default_context()
    context.check_hostname = False  # names are a finding of their own
    with (
        socket.create_connection((host, port), LIMIT_S) as line,
        context.wrap_socket(line, server_hostname=host) as tls,
    ):
        return dict(tls.getpeercert() or {})


def _chain_remedy(message: str) -> str:
    if "expired" in message:
        return "renew it (certbot renew), then systemctl reload nginx"
    return "let nginx send the whole chain (fullchain.pem); an authority of your campus belongs into campus.ca_file"


def _wildcard(host: str) -> Iterator[Finding]:
    """Every name below the hub's must lead to it."""
    name = f"gpucampus-doctor.{host}"
    try:
        here = {row[4][0] for row in socket.getaddrinfo(host, 443)}
        there = {row[4][0] for row in socket.getaddrinfo(name, 443)}
    except OSError:
        yield fail(
            "certificate DNS",
            f"{name} has no address, so servers cannot be opened",
            f"add *.{host} to your DNS, leading where {host} does",
        )
        return
    if here & there:
        yield ok("certificate DNS", f"*.{host} leads where {host} does")
    else:
        yield warn("certificate DNS", f"*.{host} leads elsewhere than {host}", f"correct *.{host} in your DNS")


def _loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


# -- identity provider ----------------------------------------------------------------------------------------------


def provider(machine: Machine) -> Iterator[Finding]:
    """Say whether the identity provider answers, is who the settings say, and whether our secret can be read."""
    from spawner import auth  # noqa: PLC0415 - JupyterHub takes a second to import, which no other check needs

    sign_in = machine.set.sign_in
    try:
        auth.discover(sign_in.issuer)
        yield ok("identity provider", f"{sign_in.issuer} answers and says it is that")
    except auth.ProviderError as error:
        yield fail("identity provider", str(error), f"curl -i {sign_in.issuer.rstrip('/')}{auth.DISCOVERY}")
    try:
        sign_in.client_secret()
    except ValueError as error:
        yield fail("identity provider secret", str(error), f"write the client's secret to {sign_in.client_secret_file}")
        return
    path = sign_in.client_secret_file
    if path.stat().st_mode & 0o077:
        yield warn("identity provider secret", f"{path} can be read by others than its owner", f"chmod 600 {path}")
    else:
        yield ok("identity provider secret", "is there, and for its owner only")


# -- ports ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Port:
    """An address and a port that somebody listens on; the address 0.0.0.0 and :: is all of them."""

    address: str
    port: int

    @property
    def inside(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.address).is_loopback


def listening(machine: Machine) -> tuple[Port, ...]:
    """Read who listens, from the kernel's tables."""
    tables = (machine.read(f"/proc/net/{name}") for name in ("tcp", "tcp6"))
    return tuple(Port(one.address, one.port) for table in tables for one in proc_net.listening(table))


def ports(machine: Machine) -> Iterator[Finding]:
    """Say whether hub and proxy listen where they should and nowhere else, and whether the engine is open to all."""
    if not machine.read("/proc/net/tcp"):
        raise NotLookedAtError("the kernel does not show who listens (/proc/net/tcp)")
    hub, network = machine.set.hub, machine.set.network
    url = urlsplit(hub.public_url)
    public = url.port or (443 if url.scheme == "https" else 80)
    yield from judge_ports(
        listening(machine),
        {"hub API": Port(network.gateway, hub.hub_port), "proxy API": Port("127.0.0.1", hub.proxy_api_port)},
        public,
    )


def judge_ports(found: tuple[Port, ...], wanted: Mapping[str, Port], public: int) -> Iterator[Finding]:
    """Compare who listens with who should."""
    for name, place in wanted.items():
        check = f"ports {name}"
        here = {one.address for one in found if one.port == place.port}
        if elsewhere := sorted(here - {place.address}):
            text = f"port {place.port} is open on {', '.join(elsewhere)}, and should be on {place.address} only"
            yield fail(check, text, f"ss -tlnp 'sport = :{place.port}' names who listens; end it, then restart the hub")
        elif here:
            yield ok(check, f"on {place.address}:{place.port} only")
        else:
            yield warn(check, f"nobody listens on {place.address}:{place.port}, so the hub is down", _START)
    if any(one.port == public for one in found):
        yield ok("ports public", f"somebody listens on {public}")
    else:
        yield warn("ports public", f"nobody listens on {public}, where people come in", _START)
    opened = sorted({one.address for one in found if one.port in (2375, 2376) and not one.inside})
    if opened:
        text = f"the container engine listens on {', '.join(opened)}: whoever reaches it is root on this machine"
        yield fail("ports engine", text, "take -H tcp://... out of docker.service and hosts out of daemon.json")
    else:
        yield ok("ports engine", "the container engine is not open to the network")
