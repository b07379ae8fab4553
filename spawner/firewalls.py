"""Which firewall of this machine keeps containers from the hub, and the rule that would let them through.

Only told, never added: a firewall belongs to whoever runs the machine.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

__all__ = ["Firewall", "Wanted", "culprit", "legacy_rules"]

_LEGACY_TABLES = Path("/proc/net/ip_tables_names")
_OF_IPTABLES = frozenset({"raw", "mangle", "nat"})  # Docker itself drops there what is not for its containers
_LIMIT_S = 10


@dataclass(frozen=True, slots=True)
class Firewall:
    """A firewall that may be in the way, and what to type so that it is not."""

    name: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a firewall has to let through: from our bridge and its addresses to the hub.

    `ours` is the name of our own tables, which are left out.
    """

    bridge: str
    subnet: IPv4Network
    gateway: IPv4Address
    port: int
    ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """A chain of nftables, as far as it says who it belongs to and whether it turns packets down."""

    family: str
    table: str
    name: str
    hook: str
    drops: bool
    jumps: frozenset[str]


def culprit(nft: str, legacy: str, wanted: Wanted) -> Firewall | None:
    """Find who turns down what comes in from our bridge; None where nothing of the kind is to be seen.

    Parameters
    ----------
    nft
        All tables, as `nft -j list ruleset` prints them; iptables of today are among them.
    legacy
        The filter table of iptables-legacy, as `iptables-legacy-save` prints it; empty where that is not in use.
    wanted
        What has to be let through.
    """
    chains = [chain for chain in _chains(nft) if chain.table != wanted.ours]
    inputs = [chain for chain in chains if chain.hook == "input"]
    inputs += [chain for chain in chains if chain.hook == "prerouting" and chain.table not in _OF_IPTABLES]
    jumps = {line.split()[-1] for line in legacy.splitlines() if line.startswith("-A INPUT ")}
    jumps |= {name for chain in inputs for name in chain.jumps}
    if any(name.startswith("ufw-") for name in jumps):
        return Firewall("ufw", f"ufw allow in on {wanted.bridge} to {wanted.gateway} port {wanted.port} proto tcp")
    if any(chain.table == "firewalld" for chain in chains) or any(name.endswith("_ZONES") for name in jumps):
        return Firewall("firewalld", _rich_rule(wanted))
    return _by_hand(chains, inputs, legacy, wanted)


def _rich_rule(wanted: Wanted) -> str:
    zone = f"$(firewall-cmd --get-zone-of-interface={wanted.bridge} || firewall-cmd --get-default-zone)"
    rule = (
        f'rule family="ipv4" source address="{wanted.subnet}" destination address="{wanted.gateway}" '
        f'port port="{wanted.port}" protocol="tcp" accept'
    )
    return f"firewall-cmd --permanent --zone={zone} --add-rich-rule='{rule}' && firewall-cmd --reload"


def _by_hand(chains: list[_Chain], inputs: list[_Chain], legacy: str, wanted: Wanted) -> Firewall | None:
    """Find a chain that somebody made without one of the well-known programs."""
    accept = f"-I INPUT -i {wanted.bridge} -d {wanted.gateway} -p tcp --dport {wanted.port} -j ACCEPT"
    for chain in inputs:
        if not _reaches_a_drop(chain, chains):
            continue
        if (chain.table, chain.name) == ("filter", "INPUT"):
            return Firewall("iptables (its chain INPUT)", f"iptables {accept}")
        place = f"{chain.family} {chain.table} {chain.name}"
        rule = f'iifname "{wanted.bridge}" ip daddr {wanted.gateway} tcp dport {wanted.port} accept'
        return Firewall(f"nftables (its chain {place})", f"nft 'insert rule {place} {rule}'")
    lines = legacy.splitlines()
    if any(line.startswith(":INPUT DROP") for line in lines) or any(
        line.startswith("-A INPUT ") and not {"DROP", "REJECT"}.isdisjoint(line.split()) for line in lines
    ):
        return Firewall("iptables-legacy (its chain INPUT)", f"iptables-legacy {accept}")
    return None


def _reaches_a_drop(start: _Chain, chains: Iterable[_Chain]) -> bool:
    beside = {chain.name: chain for chain in chains if (chain.family, chain.table) == (start.family, start.table)}
    seen, waiting = set(), [start.name]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in beside:
            continue
        seen.add(name)
        if beside[name].drops:
            return True
        waiting += beside[name].jumps
    return False


def _chains(nft: str) -> list[_Chain]:
    try:
        entries = json.loads(nft)["nftables"] if nft else []
    except (ValueError, KeyError):
        return []
    words: dict[tuple[str, str, str], set[str]] = {}
    for rule in (entry["rule"] for entry in entries if "rule" in entry):
        words.setdefault((rule["family"], rule["table"], rule["chain"]), set()).update(_verdicts(rule.get("expr")))
    found = []
    for chain in (entry["chain"] for entry in entries if "chain" in entry):
        verdicts = words.get((chain["family"], chain["table"], chain["name"]), set())
        found.append(
            _Chain(
                family=chain["family"],
                table=chain["table"],
                name=chain["name"],
                hook=chain.get("hook", ""),
                drops=chain.get("policy") == "drop" or bool(verdicts & {"drop", "reject", "REJECT"}),
                jumps=frozenset(word.removeprefix("to ") for word in verdicts if word.startswith("to ")),
            )
        )
    return found


def _verdicts(part: object) -> Iterator[str]:
    """Find what a rule does with a packet, however deep it stands (maps hold verdicts, too)."""
    if isinstance(part, list):
        for inner in part:
            yield from _verdicts(inner)
    elif isinstance(part, dict):
        for key, inner in part.items():
            if key in {"drop", "reject"}:
                yield key
            elif key in {"jump", "goto"}:
                yield f"to {inner['target']}"
            elif key == "xt":
                yield str((inner or {}).get("name"))  # the extension REJECT of iptables
            else:
                yield from _verdicts(inner)


def legacy_rules() -> str:
    """Read the filter table of iptables-legacy; empty where the kernel has none or nobody can read it."""
    try:
        if "filter" not in _LEGACY_TABLES.read_text(encoding="ascii").split():
            return ""
        program = next(filter(None, map(shutil.which, ("iptables-legacy-save", "iptables-save"))), "")
        command = [program, "-t", "filter"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
