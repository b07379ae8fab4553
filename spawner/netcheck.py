"""The self-check of the network: what containers reach and what they do not, seen from two throw-away containers.

A connection that fails proves nothing by itself: maybe nobody listened, or there was no route. So each refusal is shown
either by our filter, which notes what it turned down of these containers' connections, or by a listener that is there.
"""

import errno
import http.client
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

from spawner import firewalls, netfilter, routes
from spawner.core import catalog as catalogs
from spawner.docker_api import EngineRefuses, EngineSaysGone, EngineUnknown
from spawner.findings import Finding, Status
from spawner.firewalls import Firewall, Wanted
from spawner.netfilter import FilterError, Refused
from spawner.netprobe import PORT, Answers, Knock, Probe, probes
from spawner.settings import Settings

__all__ = ["Report", "Target", "check", "hub_answers", "judge", "look", "targets"]

HUB = "hub API from containers"
TO_CONTAINERS = "host to containers"
_CONTAINERS = "containers to containers"
_HOST = "containers to host ports"
_PROXY = "containers to proxy API"
_METADATA = "containers to link-local and metadata"
_DENIED = "containers to denied networks"
_IPV6 = "containers over IPv6"
_NO_ROUTE = ("169.254.169.254", 80), ("fd00:ec2::254", 80)
_NFS, _SSH = 2049, 22
_PATH = "/hub/api"
_LIMIT_S = 2.0
_AGAIN = "restart the hub, which makes its packet filter anew"
_INSTALL = "apt-get install -y nftables, then restart the hub"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found; `blocked_by` names the firewall that keeps containers from the hub, empty where none does."""

    findings: tuple[Finding, ...]
    blocked_by: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """An address that containers must not reach; `real` where something is known to listen there."""

    check: str
    what: str
    address: str
    port: int
    real: bool = False


def check(settings: Settings) -> tuple[Finding, ...]:
    """Look at the packet filter and the network, from two throw-away containers.

    Blocks for a few seconds, needs root and an engine, and no hub process. Adds no rule and raises nothing: what
    stands against it is a finding of its own.
    """
    return look(settings).findings


def look(settings: Settings, *, hub_only: bool = False) -> Report:
    """Look as `check` does, or only whether containers reach the hub, from one container."""
    images = [variant.image for variant in catalogs.parse(settings.catalog.read_text(encoding="utf-8")).variants]
    before = () if hub_only else _of_this_machine(settings)
    count = 1 if hub_only else 2
    try:
        with probes(images, hub=settings.hub.name, network=settings.network.name, count=count) as found:
            hub, blocked_by = _hub(settings, found[0])
            closed = () if hub_only else tuple(_closed(settings, *found))
        return Report((*before, hub, *closed), blocked_by)
    except EngineSaysGone as error:
        text, remedy = f"not looked at: {error}", "build an image with `make images` and start the hub once"
        return Report((*before, Finding("network", Status.WARN, text, remedy)))
    except (EngineUnknown, EngineRefuses) as error:
        text, remedy = f"not looked at, since the engine would not: {error}", "gpucampus doctor, once it answers"
        return Report((*before, Finding("network", Status.WARN, text, remedy)))


# -- this machine -------------------------------------------------------------------------------------------------


def _of_this_machine(settings: Settings) -> tuple[Finding, ...]:
    network = settings.network
    text, remedy = routes.said(network.subnet, network.bridge, routes.read(), network.denied)
    way = Finding(
        "network routes", Status.WARN if text else Status.OK, text or f"{network.subnet} is ours alone", remedy
    )
    return filter_finding(settings), netfilter.bridged_traffic(network.bridge), way


def filter_finding(settings: Settings) -> Finding:
    """Say whether our packet filter is there."""
    bridge, denied = settings.network.bridge, len(settings.network.denied)
    try:
        if netfilter.present(bridge):
            return Finding(netfilter.CHECK, Status.OK, f"ours is there, with {denied} denied networks")
        netfilter.find_nft()
    except FilterError as error:
        text = f"{error}, so containers reach this machine's ports and whatever it routes to"
        return Finding(netfilter.CHECK, Status.FAIL, text, _INSTALL)
    text = "ours is not there, so containers reach this machine's ports and whatever it routes to"
    return Finding(netfilter.CHECK, Status.FAIL, text, _AGAIN)


# -- the hub ------------------------------------------------------------------------------------------------------


def hub_answers(settings: Settings) -> bool:
    """Whether the hub's API answers on the bridge's address, asked from this machine."""
    line = http.client.HTTPConnection(settings.network.gateway, settings.hub.hub_port, timeout=_LIMIT_S)
    try:
        line.request("GET", _PATH)
        return line.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        line.close()


def _hub(settings: Settings, probe: Probe) -> tuple[Finding, str]:
    """Say whether a container reaches the hub; where only containers do not, also who blocks it."""
    place = f"{settings.network.gateway}:{settings.hub.hub_port}"
    for _ in range(2):  # a blocked hub refuses every start, so one lost packet must not say so
        word = probe.knock([Knock(settings.network.gateway, settings.hub.hub_port, _PATH)]).words[0]
        if word.startswith("http ") and word < "http 5":
            return Finding(HUB, Status.OK, f"{place} answers"), ""
    if not hub_answers(settings):
        text = f"not seen, since no hub answers at {place}"
        return Finding(HUB, Status.WARN, text, "start the hub, then look again"), ""
    firewall = _blocker(settings)
    return Finding(
        HUB,
        Status.FAIL,
        f"{place} answers this machine and not containers ({word}): {firewall.name} blocks it, so no server can start",
        firewall.rule,
    ), firewall.name


def _blocker(settings: Settings) -> Firewall:
    network = settings.network
    gateway, port = IPv4Address(network.gateway), settings.hub.hub_port
    ours = netfilter.filter_of(settings, ())
    wanted = Wanted(bridge=network.bridge, subnet=network.subnet, gateway=gateway, port=port, ours=ours.table)
    with suppress(FilterError):
        if any((found.target, found.port) == (str(gateway), port) for found in netfilter.refused(network.bridge)):
            return Firewall("the hub's own packet filter", _AGAIN)
    found = firewalls.culprit(netfilter.listing(), firewalls.legacy_rules(), wanted)
    way = f"find what drops TCP from {network.bridge} to {gateway} port {port} (`nft list ruleset`), and allow it"
    return found or Firewall("something on this machine", way)


# -- what must be closed --------------------------------------------------------------------------------------------


def targets(
    settings: Settings, *, peer: str, free_port: int, own_address: str, listening: frozenset[tuple[str, int]]
) -> tuple[Target, ...]:
    """List what a container must not reach over IPv4.

    Parameters
    ----------
    settings
        Gateway, ports and denied networks are theirs.
    peer
        The other container's address.
    free_port
        A port of the gateway where somebody listens for this check.
    own_address
        This machine's address in the campus network; empty where it has none.
    listening
        The addresses and ports that are known to take connections.
    """
    gateway = settings.network.gateway
    found = [
        Target(_CONTAINERS, "another container", peer, PORT),
        Target(_HOST, "a port of this machine", gateway, free_port),
        Target(_PROXY, "the proxy's API", gateway, settings.hub.proxy_api_port),
        Target(_METADATA, "the metadata address", *_NO_ROUTE[0]),
    ]
    if own_address:
        found.append(Target(_HOST, "a port of this machine", own_address, _SSH))
    found += [
        Target(_DENIED, str(network), _inside(network), _NFS)
        for network in settings.network.denied
        if isinstance(network, IPv4Network)
    ]
    return tuple(replace(target, real=(target.address, target.port) in listening) for target in found)


def _inside(network: IPv4Network | IPv6Network) -> str:
    """An address in the middle: the first ones are often this machine's own."""
    return str(network[min(network.num_addresses // 2 + 1, network.num_addresses - 1)])


def judge(
    tried: Mapping[Target, str], refused: frozenset[Refused], *, source: str, filtered: bool
) -> tuple[Finding, ...]:
    """Say of each check what its targets' answers prove; the worst of them speaks for the check."""
    by_check: dict[str, list[Finding]] = {}
    for target, word in tried.items():
        noted = {(seen.target, seen.port) for seen in refused if seen.source == source}
        by_filter = not noted.isdisjoint({(target.address, target.port), (target.address, 0)})
        by_check.setdefault(target.check, []).append(_verdict(target, word, by_filter=by_filter, filtered=filtered))
    return tuple(_together(found) for found in by_check.values())


def _together(found: Sequence[Finding]) -> Finding:
    """Say the worst of some findings of one check, and how many more are like it."""
    order = list(Status)
    worst = max(found, key=lambda finding: order.index(finding.status))
    alike = sum(finding.status is worst.status for finding in found) - 1
    return replace(worst, text=f"{worst.text}; and {alike} more like it") if alike else worst


def _verdict(target: Target, word: str, *, by_filter: bool, filtered: bool) -> Finding:
    place = f"{target.what} ({_place(target.address, target.port)})"
    if word == "open":
        remedy = _AGAIN if filtered else _INSTALL
        return Finding(target.check, Status.FAIL, f"a container reached {place}", remedy)
    if by_filter:
        return Finding(target.check, Status.OK, f"{place} is refused by our filter")
    if target.real:
        return Finding(target.check, Status.OK, f"{place} is not reached ({word}), by another rule than ours")
    text = f"{place} gave no answer ({word}), which proves nothing: our filter did not see the attempt"
    return Finding(target.check, Status.WARN, text, _AGAIN if filtered else _INSTALL)


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _closed(settings: Settings, one: Probe, other: Probe) -> Iterator[Finding]:
    """Try everything that must be closed, and say what came of it."""
    bridge, filtered = settings.network.bridge, True
    try:
        netfilter.expect(bridge, one.address)
    except FilterError:
        filtered = False
    reached = _connects(str(other.address), PORT)
    yield _to_containers(str(other.address), reached=reached)
    with ExitStack() as stack:
        gateway = settings.network.gateway
        ports = [stack.enter_context(_listening(gateway, port)) for port in (0, settings.hub.proxy_api_port)]
        listening = {(gateway, port) for port in ports} | ({(str(other.address), PORT)} if reached else set())
        listed = targets(
            settings,
            peer=str(other.address),
            free_port=ports[0] or _SSH,
            own_address=_own_address(),
            listening=frozenset(listening),
        )
        answers = one.knock([Knock(target.address, target.port) for target in listed])
        tried = dict(zip(listed, answers.words, strict=True))
    seen: frozenset[Refused] = frozenset()
    with suppress(FilterError):
        seen = netfilter.refused(bridge)
    yield from judge(tried, seen, source=str(one.address), filtered=filtered)
    if not settings.network.denied:
        yield Finding(_DENIED, Status.OK, "none are set (network.denied)")
    elif not any(isinstance(network, IPv4Network) for network in settings.network.denied):
        yield Finding(_DENIED, Status.OK, "all of them are IPv6, which containers have none of")
    yield _ipv6(settings, one, other, answers, filtered=filtered)


def _to_containers(address: str, *, reached: bool) -> Finding:
    if reached:
        return Finding(TO_CONTAINERS, Status.OK, "this machine reaches containers, as the proxy has to")
    text = f"this machine does not reach a container at {address}:{PORT}, so the proxy cannot reach servers"
    return Finding(TO_CONTAINERS, Status.FAIL, text, "find what drops TCP to that address (`nft list ruleset`)")


def _ipv6(settings: Settings, one: Probe, other: Probe, answers: Answers, *, filtered: bool) -> Finding:
    """Try IPv6 where a container has it at all: the bridge's own address, the other container, a metadata address."""
    if not answers.ipv6:
        return Finding(_IPV6, Status.OK, "containers have no IPv6 address")
    gateways = _link_local(settings.network.bridge)
    with ExitStack() as stack:
        free = [stack.enter_context(_listening(address, 0, settings.network.bridge)) for address in gateways]
        listed = [Target(_IPV6, "this machine", *pair, pair[1] > 0) for pair in zip(gateways, free, strict=True)]
        peers = [address for address in other.knock([]).ipv6 if address.startswith("fe80:")]
        listed += [Target(_IPV6, "another container", address, PORT, real=True) for address in peers]
        listed.append(Target(_IPV6, "the metadata address", *_NO_ROUTE[1]))
        words = one.knock([Knock(target.address, target.port) for target in listed]).words
    opened = [target for target, word in zip(listed, words, strict=True) if word == "open"]
    if opened:
        return _verdict(opened[0], "open", by_filter=False, filtered=filtered)
    if not filtered:
        return Finding(_IPV6, Status.WARN, "nothing was reached, but no filter of ours is there", _INSTALL)
    return Finding(_IPV6, Status.OK, f"none of {len(listed)} addresses is reached; our filter refuses IPv6 altogether")


# -- sockets of this machine ----------------------------------------------------------------------------------------


@contextmanager
def _listening(address: str, port: int, scope: str = "") -> Iterator[int]:
    """Listen at an address for a moment and give the port; 0 where nobody can listen there.

    A port that is taken has a listener already.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as door:
        try:
            place = (address, port, 0, socket.if_nametoindex(scope)) if scope else (address, port)
            door.bind(place)
            door.listen()
            port = int(door.getsockname()[1])
        except OSError as error:
            port = port if error.errno == errno.EADDRINUSE else 0
        yield port


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _LIMIT_S).close()
    except OSError:
        return False
    return True


def _own_address() -> str:
    """Give this machine's address towards the rest of the world; nothing is sent to find it."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.connect(("192.0.2.1", 9))
        return str(door.getsockname()[0])
    return ""


def _link_local(interface: str) -> list[str]:
    """The bridge's own IPv6 addresses."""
    try:
        rows: Iterable[Sequence[str]] = map(
            str.split, Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
        )
    except OSError:
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[-1] == interface]
