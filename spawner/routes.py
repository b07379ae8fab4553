"""Whether our containers' addresses are somebody else's on this machine, and which would be free.

A bridge with the addresses of a campus network takes that network away from the machine: its own route is nearer.
"""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

__all__ = ["Route", "clash", "free_subnet", "obstacle", "parse", "read", "said"]

_LIMIT_S = 10
_PRIVATE = tuple(IPv4Network(text) for text in ("172.16.0.0/12", "10.0.0.0/8", "192.168.0.0/16"))
_LONGEST_PREFIX = 28  # a subnet for a handful of containers


@dataclass(frozen=True, slots=True)
class Route:
    """Where packets to some addresses leave this machine."""

    network: IPv4Network
    interface: str


def parse(text: str) -> tuple[Route, ...]:
    """Read what `ip -j -4 route` prints; the default route and routes that lead nowhere are left out."""
    found = []
    for row in json.loads(text or "[]"):
        hops = row.get("nexthops") or [row]
        interface = str(hops[0].get("dev", ""))
        if row.get("type", "unicast") == "unicast" and row["dst"] not in {"default", "0.0.0.0/0"} and interface:
            found.append(Route(IPv4Network(row["dst"]), interface))
    return tuple(found)


def clash(subnet: IPv4Network, bridge: str, routes: Iterable[Route]) -> Route | None:
    """Find a route of another interface to some of our addresses."""
    return next((route for route in routes if route.interface != bridge and route.network.overlaps(subnet)), None)


def free_subnet(
    prefix: int, routes: Iterable[Route], avoid: Iterable[IPv4Network | IPv6Network] = ()
) -> IPv4Network | None:
    """Propose private addresses that no route and no denied network has; None where there are none of that size."""
    taken = [route.network for route in routes] + [net for net in avoid if isinstance(net, IPv4Network)]
    for private in _PRIVATE:
        at, end = int(private.network_address), int(private.broadcast_address)
        size = 1 << (32 - prefix)
        # from the top, where fewest networks are
        candidate = (end + 1 - size) & ~(size - 1)
        while candidate >= at:
            found = IPv4Network((candidate, prefix))
            other = next((net for net in taken if net.overlaps(found)), None)
            if other is None:
                return found
            candidate = (min(int(other.network_address), candidate) - size) & ~(size - 1)
    return None


def said(
    subnet: IPv4Network, bridge: str, routes: Iterable[Route], avoid: Iterable[IPv4Network | IPv6Network] = ()
) -> tuple[str, str]:
    """Say what clashes and what to do, both empty where nothing does."""
    routes = tuple(routes)
    other = clash(subnet, bridge, routes)
    if other is None:
        return "", ""
    free = free_subnet(min(max(subnet.prefixlen, 16), _LONGEST_PREFIX), routes, avoid)
    proposal = f'set network.subnet = "{free}"' if free else "set network.subnet to addresses that are free"
    return (
        f"the containers' addresses {subnet} are in use: the route to {other.network} leaves through {other.interface}",
        f"{proposal} in the settings",
    )


def obstacle(subnet: IPv4Network, bridge: str, avoid: Iterable[IPv4Network | IPv6Network] = ()) -> str:
    """Say why our network cannot be made here, empty where it can; one that is there has servers, and stays."""
    if Path("/sys/class/net", bridge).exists():
        return ""
    return "; ".join(filter(None, said(subnet, bridge, read(), avoid)))


def read() -> tuple[Route, ...]:
    """Read this machine's routes; none where they cannot be read, since nothing can be said of them then."""
    command = ["ip", "-j", "-4", "route", "show", "table", "all"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S)
        return parse(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
