"""The packet filter as text, and what is read back of it; tests/engine/test_network.py shows what it does."""

import shutil
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

import pytest

from spawner import netfilter
from spawner.findings import Status
from spawner.netcheck import filter_finding
from spawner.netfilter import Bridging, FilterError, PacketFilter, Refused
from spawner.settings import Settings, load
from tests.test_settings import LEAST, complaint, write

FILTER = PacketFilter(
    bridge="gpucampus0",
    subnet=IPv4Network("172.30.0.0/20"),
    gateway=IPv4Address("172.30.0.1"),
    hub_port=8081,
    denied=(IPv4Network("10.20.0.0/16"), IPv4Network("10.20.30.0/24"), IPv6Network("fd00:20::/32")),
    resolvers=(IPv4Address("10.20.0.53"),),
)


def rules(packet_filter: PacketFilter = FILTER, bridging: Bridging = Bridging.BY_NAME) -> list[str]:
    return [line.strip() for line in netfilter.ruleset(packet_filter, bridging).splitlines()]


def test_what_is_open_comes_before_what_is_closed():
    lines = rules()
    opened = ["ct direction reply accept", "ip daddr 172.30.0.1 tcp dport 8081 accept"]
    opened.append("ip daddr 10.20.0.53 meta l4proto { tcp, udp } th dport 53 accept")
    first = next(number for number, line in enumerate(lines) if "goto refuse" in line)
    assert [line for line in lines[:first] if line.endswith(" accept") and "iifname" not in line] == opened
    assert not any(line.endswith(" accept") for line in lines[first:] if "ibrname" not in line)


def test_denied_networks_link_local_and_metadata_are_closed_and_named_once():
    (line,) = [line for line in rules() if line.startswith("set closed")]
    assert "10.20.0.0/16" in line
    assert "10.20.30.0/24" not in line, "nftables refuses a set whose networks lie in each other"
    assert all(address in line for address in ("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32"))


def test_everything_can_be_denied():
    everything = replace(FILTER, denied=(IPv4Network("0.0.0.0/0"),))
    (line,) = [line for line in rules(everything) if line.startswith("set closed")]
    assert line.endswith("elements = { 0.0.0.0/0 }; }")


def test_the_tables_are_replaced_in_the_same_transaction():
    lines = rules()
    for family in ("inet", "bridge"):
        made = [line for line in lines if f"table {family} gpucampus0-filter" in line]
        assert [line.split(" table")[0] for line in made] == ["add", "delete", f"table {family} gpucampus0-filter {{"]


@pytest.mark.parametrize(
    ("bridging", "there"),
    [
        (Bridging.BY_NAME, ['meta ibrname != "gpucampus0" accept', "counter drop"]),
        (Bridging.BY_ADDRESS, ["ip saddr 172.30.0.0/20 counter drop", "arp daddr ip 172.30.0.0/20 counter drop"]),
        (Bridging.NOT_AT_ALL, []),
    ],
)
def test_frames_between_containers_are_dropped_as_far_as_the_kernel_can(bridging, there):
    lines = rules(bridging=bridging)
    assert [line for line in lines if line in there] == there
    assert any("table bridge" in line for line in lines) == bool(there)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("nameserver 10.0.0.53\nnameserver 10.0.1.53\nsearch example.org", ["10.0.0.53", "10.0.1.53"]),
        ("# nameserver 10.9.9.9\nnameserver 127.0.0.53\noptions edns0", []),
        ("nameserver fe80::1%eth0\nnameserver\nnameserver 10.0.0.53 # x", ["10.0.0.53"]),
        ("nameserver 10.0.0.53; drop", []),
        ("", []),
    ],
)
def test_name_servers_are_those_that_containers_ask_themselves(text, found):
    assert [str(address) for address in netfilter.resolvers_of([text, text])] == found


@pytest.mark.parametrize(
    "value", ['["10.0.0.0/8; drop"]', '["10.0.0.1/8"]', "[8]", '["nas.example.org"]', '"10.0.0.0/8"']
)
def test_a_denied_network_is_a_network_and_nothing_else(tmp_path, value):
    assert "network.denied" in complaint(tmp_path, f"{LEAST}[network]\ndenied = {value}\n")


def test_denied_networks_are_of_both_kinds(tmp_path):
    denied = load(write(tmp_path, f'{LEAST}[network]\ndenied = ["10.0.0.0/8", "fd00::/8"]\n')).network.denied
    assert denied == (IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/8"))


def test_refused_connections_are_read_from_what_nft_prints():
    text = """{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "inet", "name": "refused", "elem": [
        {"elem": {"val": {"concat": ["10.9.0.2", "10.9.0.1", 22]}, "expires": 56}}]}}]}"""
    assert netfilter.parse_refused(text) == {Refused(source="10.9.0.2", target="10.9.0.1", port=22)}
    bridged = text.replace(", 22]", "]")
    assert netfilter.parse_refused(bridged) == {Refused(source="10.9.0.2", target="10.9.0.1", port=0)}
    assert netfilter.parse_refused('{"nftables": [{"set": {"name": "refused"}}]}') == set()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(write(tmp_path, LEAST))


def test_without_nft_the_finding_says_what_is_open_and_which_package_closes_it(settings, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _name, path=None: None)
    with pytest.raises(FilterError, match="nft is not installed"):
        netfilter.establish(FILTER)
    assert netfilter.remove("gpucampus0") is False
    found = filter_finding(settings)
    assert found.status is Status.FAIL
    assert "nft is not installed" in found.text
    assert "apt-get install -y nftables" in found.remedy


def refusing(tmp_path: Path, *, words: str) -> Path:
    """A program in nft's place that can do nothing with these words in its input or arguments."""
    program = tmp_path / "nft"
    program.write_text(
        f'#!/bin/sh\nif [ "$2" = - ]; then cat; else echo "$@"; fi | grep -q "{words}" || exit 0\n'
        'echo "Could not process rule: Operation not supported" >&2\nexit 1\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("words", "form"),
    [("ibrname", Bridging.BY_ADDRESS), ("table bridge", Bridging.NOT_AT_ALL), ("x y z", Bridging.BY_NAME)],
)
def test_the_best_form_that_the_kernel_takes_is_made(tmp_path, monkeypatch, words, form):
    program = refusing(tmp_path, words=words)
    monkeypatch.setattr(netfilter, "find_nft", lambda: str(program))
    assert netfilter.establish(FILTER) is form


def test_a_kernel_without_nftables_is_said_in_one_sentence(tmp_path, monkeypatch, settings):
    program = refusing(tmp_path, words="table\\|chain")
    monkeypatch.setattr(netfilter, "find_nft", lambda: str(program))
    with pytest.raises(FilterError, match="not supported"):
        netfilter.establish(FILTER)
    assert filter_finding(settings).status is Status.FAIL


@pytest.mark.parametrize(
    ("content", "ours", "status", "words"),
    [
        ("1\n", True, Status.OK, "pass iptables"),
        ("0\n", True, Status.WARN, "bridge-nf-call-iptables is 0, so Docker's own rule"),
        (None, True, Status.WARN, "not loaded, so Docker's own rule"),
        (None, False, Status.FAIL, "nothing keeps containers from each other"),
    ],
)
def test_a_missing_br_netfilter_is_found_with_its_remedy(tmp_path, monkeypatch, content, ours, status, words):
    if content is not None:
        (tmp_path / "bridge-nf-call-iptables").write_text(content)
    program = refusing(tmp_path, words="x y z" if ours else "chain")
    monkeypatch.setattr(netfilter, "find_nft", lambda: str(program))
    found = netfilter.bridged_traffic("gpucampus0", tmp_path)
    assert found.status is status
    assert words in found.text
    assert status is Status.OK or "modprobe br_netfilter" in found.remedy
