"""The firewall that is in the way is named, and the rule that opens it; what is not in the way is not accused."""

import json
from ipaddress import IPv4Address, IPv4Network

import pytest

from spawner.firewalls import Wanted, culprit

WANTED = Wanted(
    bridge="gpucampus0",
    subnet=IPv4Network("172.30.0.0/20"),
    gateway=IPv4Address("172.30.0.1"),
    port=8081,
    ours="gpucampus0-filter",
)


def chain(table: str, name: str, hook: str = "", policy: str = "accept", family: str = "ip") -> dict[str, object]:
    base = {"hook": hook, "type": "filter", "prio": 0, "policy": policy} if hook else {}
    return {"chain": {"family": family, "table": table, "name": name, **base}}


def rule(table: str, name: str, *expr: object, family: str = "ip") -> dict[str, object]:
    return {"rule": {"family": family, "table": table, "chain": name, "expr": list(expr)}}


def nft(*entries: object) -> str:
    return json.dumps({"nftables": [{"metainfo": {"version": "1.0.6"}}, *entries]})


UFW = nft(
    chain("filter", "INPUT", "input", "drop"),
    chain("filter", "ufw-user-input"),
    rule("filter", "INPUT", {"counter": {"packets": 0}}, {"jump": {"target": "ufw-user-input"}}),
    rule("filter", "ufw-user-input", {"xt": {"type": "target", "name": "REJECT"}}),
)
UFW_OFF = nft(chain("filter", "INPUT", "input"), chain("filter", "ufw-user-input"))
FIREWALLD = nft(chain("firewalld", "filter_INPUT", "input", family="inet"))
IPTABLES_REJECT = nft(
    chain("filter", "INPUT", "input"), rule("filter", "INPUT", {"xt": {"type": "target", "name": "REJECT"}})
)
BY_JUMP = nft(
    chain("campus", "in", "input", family="inet"),
    chain("campus", "guests", family="inet"),
    rule(
        "campus",
        "in",
        {"vmap": {"data": {"set": [["eth0", {"accept": None}], ["x", {"jump": {"target": "guests"}}]]}}},
        family="inet",
    ),
    rule("campus", "guests", {"drop": None}, family="inet"),
)
OURS_ALONE = nft(
    chain("gpucampus0-filter", "from_containers", "prerouting", family="inet"),
    rule("gpucampus0-filter", "from_containers", {"reject": {"type": "tcp reset"}}, family="inet"),
)
DOCKER_RAW = nft(chain("raw", "PREROUTING", "prerouting"), rule("raw", "PREROUTING", {"drop": None}))
FORWARD_ONLY = nft(chain("filter", "FORWARD", "forward", "drop"), chain("filter", "INPUT", "input"))
LEGACY_UFW = "*filter\n:INPUT DROP [0:0]\n:ufw-before-input - [0:0]\n-A INPUT -j ufw-before-input\nCOMMIT\n"
LEGACY_DROP = "*filter\n:INPUT DROP [0:0]\nCOMMIT\n"
LEGACY_RULE = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -j REJECT --reject-with tcp-reset\nCOMMIT\n"
LEGACY_OPEN = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n-A FORWARD -j DROP\nCOMMIT\n"
ACCEPT = "-I INPUT -i gpucampus0 -d 172.30.0.1 -p tcp --dport 8081 -j ACCEPT"


@pytest.mark.parametrize(
    ("listing", "legacy", "name", "typed"),
    [
        (UFW, "", "ufw", "ufw allow in on gpucampus0 to 172.30.0.1 port 8081 proto tcp"),
        ("", LEGACY_UFW, "ufw", "ufw allow in on gpucampus0 to 172.30.0.1 port 8081 proto tcp"),
        (FIREWALLD, "", "firewalld", 'destination address="172.30.0.1" port port="8081" protocol="tcp" accept'),
        (IPTABLES_REJECT, "", "iptables (its chain INPUT)", f"iptables {ACCEPT}"),
        (BY_JUMP, "", "nftables (its chain inet campus in)", 'nft \'insert rule inet campus in iifname "gpucampus0"'),
        ("", LEGACY_DROP, "iptables-legacy (its chain INPUT)", f"iptables-legacy {ACCEPT}"),
        (OURS_ALONE, LEGACY_RULE, "iptables-legacy (its chain INPUT)", f"iptables-legacy {ACCEPT}"),
    ],
)
def test_a_firewall_is_named_with_the_rule_that_opens_it(listing, legacy, name, typed):
    found = culprit(listing, legacy, WANTED)
    assert found is not None
    assert found.name == name
    assert typed in found.rule


@pytest.mark.parametrize(
    "listing", [nft(), "", "no json", OURS_ALONE, DOCKER_RAW, FORWARD_ONLY, UFW_OFF, "{}"], ids=range(8)
)
@pytest.mark.parametrize("legacy", ["", LEGACY_OPEN], ids=["", "legacy"])
def test_what_lets_packets_in_is_not_accused(listing, legacy):
    assert culprit(listing, legacy, WANTED) is None
