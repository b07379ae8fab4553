"""What a failed connection proves, and what it does not."""

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import Any

import pytest

from spawner import firewalls, netcheck, netfilter
from spawner.docker_api import EngineSaysGone, EngineSilent
from spawner.findings import Status
from spawner.firewalls import Firewall
from spawner.netcheck import HUB, Target, check, judge, look, targets
from spawner.netfilter import FilterError, Refused
from spawner.netprobe import PORT, Answers, Knock
from spawner.settings import NetworkSettings, Settings, load
from tests.test_settings import EXAMPLE

ONE, OTHER = "172.30.0.2", "172.30.0.3"
CLOSED = Target("containers to host ports", "a port of this machine", "172.30.0.1", 22)
LISTENING = Target("containers to host ports", "a port of this machine", "172.30.0.1", 40000, real=True)


def site(*denied: str) -> Settings:
    network = NetworkSettings.model_validate({"denied": denied})
    return load(EXAMPLE).model_copy(update={"network": network})


@pytest.mark.parametrize(
    ("target", "word", "noted", "status", "words"),
    [
        (LISTENING, "open", (), Status.FAIL, "a container reached"),
        (CLOSED, "ECONNREFUSED", [(ONE, "172.30.0.1", 22)], Status.OK, "refused by our filter"),
        (CLOSED, "timeout", [(ONE, "172.30.0.1", 0)], Status.OK, "refused by our filter"),
        (CLOSED, "ECONNREFUSED", [(OTHER, "172.30.0.1", 22)], Status.WARN, "proves nothing"),
        (CLOSED, "ECONNREFUSED", [(ONE, "172.30.0.1", 23)], Status.WARN, "proves nothing"),
        (LISTENING, "timeout", (), Status.OK, "not reached (timeout), by another rule than ours"),
        (CLOSED, "timeout", (), Status.WARN, "gave no answer (timeout), which proves nothing"),
    ],
)
def test_a_refusal_is_proved_by_our_filter_or_by_somebody_who_listens(target, word, noted, status, words):
    refused = frozenset(Refused(source=source, target=to, port=port) for source, to, port in noted)
    (found,) = judge({target: word}, refused, source=ONE, filtered=True)
    assert found.status is status
    assert words in found.text


def test_the_worst_target_speaks_for_a_check():
    refused = frozenset({Refused(source=ONE, target=CLOSED.address, port=CLOSED.port)})
    (found,) = judge({CLOSED: "timeout", LISTENING: "open"}, refused, source=ONE, filtered=False)
    assert found.status is Status.FAIL
    assert "apt-get install -y nftables" in found.remedy


def test_those_that_are_alike_are_counted():
    other = Target(CLOSED.check, "a port of this machine", "10.0.0.7", 22)
    refused = frozenset(Refused(source=ONE, target=target.address, port=target.port) for target in (CLOSED, other))
    (found,) = judge({CLOSED: "timeout", other: "timeout"}, refused, source=ONE, filtered=True)
    assert found.text == "a port of this machine (172.30.0.1:22) is refused by our filter; and 1 more like it"


def test_every_denied_network_is_tried():
    found = targets(
        site("10.20.0.0/16", "fd00::/8", "10.9.9.9/32", "192.168.0.0/31", "0.0.0.0/0"),
        peer=OTHER,
        free_port=40000,
        own_address="10.0.0.7",
        listening=frozenset({(OTHER, PORT), ("172.30.0.1", 40000)}),
    )
    tried = {target.what: target.address for target in found if target.check == "containers to denied networks"}
    assert tried == {
        "10.20.0.0/16": "10.20.128.1",
        "10.9.9.9/32": "10.9.9.9",
        "192.168.0.0/31": "192.168.0.1",
        "0.0.0.0/0": "128.0.0.1",
    }
    assert {(target.address, target.port) for target in found if target.real} == {
        (OTHER, PORT),
        ("172.30.0.1", 40000),
    }
    assert ("172.30.0.1", 8001) in {(target.address, target.port) for target in found}


class Container:
    """A container of the self-check whose knocks have the answers of a table."""

    address = IPv4Address(ONE)

    def __init__(self, words: dict[tuple[str, int], str]) -> None:
        self.words = words

    def knock(self, knocks: list[Knock]) -> Answers:
        words = tuple(self.words.get((knock.address, knock.port), "timeout") for knock in knocks)
        return Answers(words=words, ipv6=())


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], str]:
    """A machine without our filter or a firewall whose hub answers; what containers reach is the table given."""
    words: dict[tuple[str, int], str] = {}

    @contextmanager
    def probes(*_: Any, count: int, **__: Any) -> Iterator[list[Container]]:
        yield [Container(words)] * count

    def missing() -> str:
        raise FilterError("the program nft is not installed")

    monkeypatch.setattr(netcheck, "probes", probes)
    monkeypatch.setattr(netfilter, "find_nft", missing)
    monkeypatch.setattr(netcheck, "hub_answers", lambda _settings: True)
    monkeypatch.setattr(netcheck, "_connects", lambda *_: False)
    monkeypatch.setattr(firewalls, "legacy_rules", lambda: "")
    return words


@pytest.mark.parametrize("word", ["http 200", "http 404"])
def test_a_hub_that_answers_containers_is_fine(machine, word):
    machine["172.30.0.1", 8081] = word
    assert look(site(), hub_only=True).findings[0].status is Status.OK


@pytest.mark.parametrize("word", ["timeout", "ECONNREFUSED", "EHOSTUNREACH", "http 502", "no http"])
def test_a_hub_that_only_this_machine_reaches_is_blocked_by_somebody(machine, monkeypatch, word):
    machine["172.30.0.1", 8081] = word
    monkeypatch.setattr(firewalls, "culprit", lambda *_: Firewall("ufw", "ufw allow it"))
    report = look(site(), hub_only=True)
    assert report.blocked_by == "ufw"
    (found,) = report.findings
    assert (found.check, found.status, found.remedy) == (HUB, Status.FAIL, "ufw allow it")
    monkeypatch.setattr(firewalls, "culprit", lambda *_: None)
    assert look(site(), hub_only=True).blocked_by == "something on this machine"


def test_our_own_filter_is_named_when_it_is_what_blocks_the_hub(machine, monkeypatch):
    refused = frozenset({Refused(source=ONE, target="172.30.0.1", port=8081)})
    monkeypatch.setattr(netfilter, "refused", lambda _bridge: refused)
    assert look(site(), hub_only=True).blocked_by == "the hub's own packet filter"


def test_a_hub_that_does_not_run_is_not_blocked(machine, monkeypatch):
    monkeypatch.setattr(netcheck, "hub_answers", lambda _settings: False)
    report = look(site(), hub_only=True)
    assert report.blocked_by == ""
    assert report.findings[0].status is Status.WARN


@pytest.mark.parametrize("error", [EngineSaysGone("network gpucampus not found"), EngineSilent("no answer")])
def test_an_engine_in_trouble_is_a_finding(machine, monkeypatch, error):
    def probes(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(netcheck, "probes", probes)
    found = {finding.check: finding for finding in check(site())}
    assert str(error) in found["network"].text
    assert found["packet filter"].status is Status.FAIL


def test_without_nft_the_whole_check_still_speaks(machine):
    found = {finding.check: finding for finding in check(site("10.20.0.0/16"))}
    assert found["packet filter"].remedy.startswith("apt-get install -y nftables")
    assert "proves nothing" in found["containers to denied networks"].text
    assert found["host to containers"].status is Status.FAIL
