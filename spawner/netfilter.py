"""Our packet filter: what containers on our bridge may reach. Nftables tables of our own, made anew as a whole.

- `inet`, before routing and before Docker's translation of addresses: from the bridge to this machine only the hub's
  API; nothing to other containers, link-local and metadata addresses or denied networks, and nothing over IPv6.
- `bridge`: no frame from one container's port to another's, whether br_netfilter is loaded or not.

In nftables a drop is final whatever other tables accept, and an accept is not: a firewall of the machine still has its
say. What was opened from this machine's side (the proxy asks a server) is answered. A refused connection gets an answer
at once, so that programs fail instead of waiting. What the self-check's containers tried is noted in sets, as proof.
"""

import json
import logging
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Network, collapse_addresses
from pathlib import Path

from spawner.findings import Finding, Status
from spawner.settings import Settings

__all__ = [
    "CHECK",
    "Bridging",
    "FilterError",
    "PacketFilter",
    "Refused",
    "bridged_traffic",
    "establish",
    "expect",
    "filter_of",
    "find_nft",
    "listing",
    "parse_refused",
    "present",
    "refused",
    "remove",
    "resolvers_of",
    "ruleset",
]

LOG = logging.getLogger(__name__)
CHECK = "packet filter"
LIMIT_S = 10
_SECONDS_KEPT = 60
_MOST_KEPT = 1024
_BR_NETFILTER = Path("/proc/sys/net/bridge")
_RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
# Link-local, and the clouds' metadata addresses that are not: Alibaba, Azure, Oracle.
_NEVER = tuple(
    IPv4Network(text) for text in ("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32")
)


class FilterError(Exception):
    """The filter could not be made, read or removed; the text says why, in one sentence."""


class Bridging(StrEnum):
    """How frames between containers are recognised, best first: kernels differ in what they can."""

    BY_NAME = "by the bridge's name"
    BY_ADDRESS = "by the containers' addresses"
    NOT_AT_ALL = "not at all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketFilter:
    """What the filter is made of; every value has a type that can hold nothing but itself."""

    bridge: str
    subnet: IPv4Network
    gateway: IPv4Address
    hub_port: int
    denied: tuple[IPv4Network | IPv6Network, ...] = ()
    resolvers: tuple[IPv4Address, ...] = ()

    @property
    def table(self) -> str:
        """The name of our tables; one for each bridge, so that two hubs can be on one machine."""
        return _table(self.bridge)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A connection of the self-check's that the filter turned down; port 0 is a frame to another container."""

    source: str
    target: str
    port: int


def filter_of(settings: Settings, resolvers: Sequence[IPv4Address] | None = None) -> PacketFilter:
    """Make the filter that the settings ask for; name servers are those of this machine unless given."""
    network = settings.network
    return PacketFilter(
        bridge=network.bridge,
        subnet=network.subnet,
        gateway=IPv4Address(network.gateway),
        hub_port=settings.hub.hub_port,
        denied=network.denied,
        resolvers=tuple(resolvers if resolvers is not None else resolvers_of(_read_all(_RESOLVERS))),
    )


def resolvers_of(texts: Iterable[str]) -> tuple[IPv4Address, ...]:
    """The name servers in some resolv.conf texts that containers ask themselves.

    One on this machine's loopback is not among them: the engine asks it in their place.
    """
    found: dict[IPv4Address, None] = {}
    for words in (line.split() for text in texts for line in text.splitlines()):
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            address = IPv4Address(words[1])
        except ValueError:  # IPv6: containers have none
            continue
        if not address.is_loopback:
            found[address] = None
    return tuple(found)


def ruleset(packet_filter: PacketFilter, bridging: Bridging) -> str:
    """Write the filter as one transaction for `nft -f -`, which replaces what is there or changes nothing."""
    it = packet_filter
    resolvers = "".join(
        f"        ip daddr {address} meta l4proto {{ tcp, udp }} th dport 53 accept\n" for address in it.resolvers
    )
    closed = ", ".join(
        str(network)
        for network in collapse_addresses([*_NEVER, *(net for net in it.denied if isinstance(net, IPv4Network))])
    )
    text = f"""\
table inet {it.table} {{
    set probes {{ type ipv4_addr; flags timeout; timeout {_SECONDS_KEPT}s; }}
    set refused {{
        type ipv4_addr . ipv4_addr . inet_service; flags dynamic, timeout; timeout {_SECONDS_KEPT}s; size {_MOST_KEPT};
    }}
    set closed {{ type ipv4_addr; flags interval; elements = {{ {closed} }}; }}
    chain from_containers {{
        type filter hook prerouting priority mangle; policy accept;
        iifname != "{it.bridge}" accept
        ct direction reply accept
        ip daddr {it.gateway} tcp dport {it.hub_port} accept
{resolvers}\
        fib daddr type {{ local, broadcast, anycast, multicast }} counter goto refuse comment "this machine"
        ip daddr {it.subnet} counter goto refuse comment "other containers"
        ip daddr @closed counter goto refuse comment "link-local, metadata, denied networks"
        meta nfproto ipv6 counter goto refuse comment "IPv6, of which our bridge has none"
    }}
    chain refuse {{
        ip saddr @probes meta l4proto tcp add @refused {{ ip saddr . ip daddr . tcp dport }}
        meta l4proto tcp reject with tcp reset
        reject with icmpx type admin-prohibited
    }}
}}
"""
    replaced = f"add table inet {it.table}\ndelete table inet {it.table}\n{text}"
    return replaced if bridging is Bridging.NOT_AT_ALL else replaced + _bridge_part(it, bridging)


def _bridge_part(it: PacketFilter, bridging: Bridging) -> str:
    if bridging is Bridging.BY_NAME:
        first, last = f'        meta ibrname != "{it.bridge}" accept\n', "        counter drop\n"
    else:
        first = ""
        matches = ("ip saddr", "ip daddr", "arp saddr ip", "arp daddr ip")
        last = "".join(f"        {match} {it.subnet} counter drop\n" for match in matches)
    return f"""\
add table bridge {it.table}
delete table bridge {it.table}
table bridge {it.table} {{
    set probes {{ type ipv4_addr; flags timeout; timeout {_SECONDS_KEPT}s; }}
    set refused {{
        type ipv4_addr . ipv4_addr; flags dynamic, timeout; timeout {_SECONDS_KEPT}s; size {_MOST_KEPT};
    }}
    chain between_containers {{
        type filter hook forward priority filter; policy accept;
{first}\
        arp operation request arp saddr ip @probes add @refused {{ arp saddr ip . arp daddr ip }}
{last}\
    }}
}}
"""


def establish(packet_filter: PacketFilter, forms: Sequence[Bridging] = tuple(Bridging)) -> Bridging:
    """Make the filter anew, in one transaction, in the first form that this kernel can; FilterError where none."""
    first: FilterError | None = None
    for bridging in forms:
        try:
            _nft("-f", "-", text=ruleset(packet_filter, bridging))
        except FilterError as error:
            first = first or error
        else:
            LOG.info("packet filter %s: frames between containers are told %s", packet_filter.table, bridging)
            return bridging
    raise first or FilterError("no form of the filter was asked for")


def present(bridge: str) -> bool:
    """Whether the filter of a bridge is there; FilterError where that cannot be asked."""
    try:
        _nft("list", "chain", "inet", _table(bridge), "from_containers")
    except FilterError:
        find_nft()
        return False
    return True


def remove(bridge: str) -> bool:
    """Remove the filter of a bridge; False where there was none."""
    if shutil.which("nft") is None or not present(bridge):
        return False
    _nft("delete", "table", "inet", _table(bridge))
    if _has_bridge_part(bridge):
        _nft("delete", "table", "bridge", _table(bridge))
    return True


def expect(bridge: str, address: IPv4Address) -> None:
    """Note from now on what is refused to this address, for a minute; FilterError where there is no filter."""
    element = ("probes", f"{{ {address} }}")
    _nft("add", "element", "inet", _table(bridge), *element)
    if _has_bridge_part(bridge):
        _nft("add", "element", "bridge", _table(bridge), *element)


def refused(bridge: str) -> frozenset[Refused]:
    """What the filter has turned down of the expected addresses' connections in the last minute."""
    found = parse_refused(_nft("-j", "list", "set", "inet", _table(bridge), "refused"))
    if _has_bridge_part(bridge):
        found |= parse_refused(_nft("-j", "list", "set", "bridge", _table(bridge), "refused"))
    return found


def parse_refused(text: str) -> frozenset[Refused]:
    """Read what nft prints of a set of refused connections."""
    found = set()
    for entry in json.loads(text)["nftables"]:
        for element in entry.get("set", {}).get("elem", ()):
            source, target, *port = element["elem"]["val"]["concat"]
            found.add(Refused(source=source, target=target, port=port[0] if port else 0))
    return frozenset(found)


def listing() -> str:
    """All tables of this machine as JSON, to find who else filters; empty where that cannot be asked."""
    try:
        return _nft("-j", "list", "ruleset")
    except FilterError:
        return ""


def bridged_traffic(bridge: str, folder: Path = _BR_NETFILTER) -> Finding:
    """Look whether frames on bridges pass iptables, which Docker's own rule between containers needs."""
    check, remedy = "br_netfilter", "modprobe br_netfilter && echo br_netfilter > /etc/modules-load.d/gpucampus.conf"
    try:
        on = (folder / "bridge-nf-call-iptables").read_text(encoding="ascii").strip() == "1"
        lack, remedy = "bridge-nf-call-iptables is 0", f"{remedy} && sysctl -w net.bridge.bridge-nf-call-iptables=1"
    except OSError:
        on, lack = False, "the kernel module br_netfilter is not loaded"
    if on:
        return Finding(check, Status.OK, "frames between containers pass iptables, too")
    if _has_bridge_part(bridge):
        text = f"{lack}, so Docker's own rule between containers does not hold; ours holds without it"
        return Finding(check, Status.WARN, text, remedy)
    return Finding(check, Status.FAIL, f"{lack}, so nothing keeps containers from each other", remedy)


def find_nft() -> str:
    """The program's path; FilterError where it is not installed."""
    found = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if found is None:
        raise FilterError("the program nft is not installed")
    return found


def _table(bridge: str) -> str:
    return f"{bridge}-filter"


def _has_bridge_part(bridge: str) -> bool:
    try:
        _nft("list", "chain", "bridge", _table(bridge), "between_containers")
    except FilterError:
        return False
    return True


def _read_all(paths: Iterable[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            found.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return found


def _nft(*arguments: str, text: str = "") -> str:
    command = [find_nft(), *arguments]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FilterError(f"nft does not work here: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise FilterError(f"nft ended with {done.returncode}: {said[0]}")
    return done.stdout
