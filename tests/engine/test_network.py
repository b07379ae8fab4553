"""What containers reach with our packet filter and without it, with somebody who really listens at the other end."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from docker.types import IPAMConfig, IPAMPool

from deploy import down
from spawner import netfilter, netprobe
from spawner.core.ledger import LABEL
from spawner.docker_api import list_containers_once, prepare_host
from spawner.findings import Status
from spawner.netcheck import HUB, check, look
from spawner.netfilter import Bridging, PacketFilter
from spawner.netprobe import KIND, PORT, Knock, Probe, probes
from spawner.settings import Settings
from tests.conftest import STATE
from tests.rig.engine import PrivateEngine
from tests.rig.probe_image import load_probe_image
from tests.rig.waiting import wait_until_sync

pytestmark = pytest.mark.docker

NAME, BRIDGE, SUBNET, GATEWAY = "campus-test", "campustest0", "10.77.0.0/24", "10.77.0.1"
IMAGE = "gpucampus-test/netcheck:1"
NAS, METADATA = "10.66.0.0/24", "169.254.169.0/24"
CAMPUS, CAMPUS_SERVER, OTHER_ADDRESS, PUBLISHED = "10.67.0.0/24", "10.67.0.9", "10.67.0.1", 18888
NAS_SERVER, METADATA_SERVER = "10.66.0.129", "169.254.169.254"
BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
CATALOG = f"""
version = 1
[base]
image = "gpucampus-test/base"
suite = "bookworm"
[variants.probe]
title = "Probe"
folder = "images/plain"
image = "{IMAGE}"
default = true
"""


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub's API does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_request(self, code: object = "", size: object = "") -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(engine: PrivateEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Our network and a hub's API on it, without a packet filter."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "catalog.toml").write_text(CATALOG, encoding="utf-8")
    engine.client.images.get(load_probe_image(engine, STATE.parent / "cache")).tag(IMAGE)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("DOCKER_HOST", engine.url)
        prepare_host(NAME, BRIDGE, IPv4Network(SUBNET))
        stack.callback(engine.client.api.remove_network, NAME)
        server = ThreadingHTTPServer((GATEWAY, 0), Hub)
        stack.callback(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        yield Settings.model_validate(
            {
                "version": 1,
                "catalog": folder / "catalog.toml",
                "hub": {"name": NAME, "hub_port": server.server_address[1]},
                "network": {"name": NAME, "bridge": BRIDGE, "subnet": SUBNET, "denied": [NAS, "fd66::/16"]},
                "sign_in": {"issuer": "https://sso.example.org", "client_id": "x", "client_secret_file": "/none"},
                "roles": {"student": {"groups": ["students"], "memory": "1G", "default_memory": "1G"}},
            }
        )


@pytest.fixture(autouse=True)
def unfiltered(site: Settings) -> Iterator[None]:
    """No filter of ours before a test or after it."""
    netfilter.remove(BRIDGE)
    yield
    netfilter.remove(BRIDGE)


@contextmanager
def unbridged() -> Iterator[None]:
    """The kernel as it is without br_netfilter: Docker's own rule between containers does not hold."""
    BRIDGED.write_text("0")
    try:
        yield
    finally:
        BRIDGED.write_text("1")


@contextmanager
def elsewhere(engine: PrivateEngine, subnet: str, address: str) -> Iterator[None]:
    """A server in another network that this machine routes to; Docker is told to let the two networks meet.

    That of the campus is also published as a port of this machine.
    """
    api: Any = engine.client.api
    name = f"elsewhere-{address}"
    api.create_network(name, driver="bridge", ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)]))
    rule = ["DOCKER-USER", "-i", BRIDGE, "-j", "ACCEPT"]
    back = ["DOCKER-USER", "-o", BRIDGE, "-j", "ACCEPT"]
    for parts in (rule, back):
        subprocess.run(["iptables", "-I", *parts], check=True)
    serve = (
        f"import signal, socket; doors = [socket.create_server(('', port)) for port in ({PORT}, 53)]; signal.pause()"
    )
    endpoint = api.create_networking_config({name: api.create_endpoint_config(ipv4_address=address)})
    published = {PORT: PUBLISHED} if address == CAMPUS_SERVER else {}
    made = api.create_container(
        IMAGE,
        ["python3", "-c", serve],
        ports=list(published),
        networking_config=endpoint,
        host_config=api.create_host_config(network_mode=name, port_bindings=published),
    )
    try:
        api.start(made["Id"])
        wait_until_sync(lambda: reaches(address, PORT), 30, f"{address} listens")
        yield
    finally:
        api.remove_container(made["Id"], force=True)
        for parts in (rule, back):
            subprocess.run(["iptables", "-D", *parts], check=True)
        api.remove_network(name)


@contextmanager
def listening(address: str, family: socket.AddressFamily = socket.AF_INET) -> Iterator[int]:
    """Somebody on this machine who takes connections."""
    with socket.socket(family) as door:
        door.bind((address, 0))
        door.listen()
        yield door.getsockname()[1]


def reaches(address: str, port: int) -> bool:
    """Whether this machine gets a connection there."""
    try:
        socket.create_connection((address, port), 2).close()
    except OSError:
        return False
    return True


def pair(count: int = 2, network: str = NAME) -> Any:
    return probes([IMAGE], hub=NAME, network=network, count=count)


def opened(probe: Probe, *places: tuple[str, int]) -> list[bool]:
    """Which of these places a container reaches."""
    return [word == "open" for word in probe.knock([Knock(*place) for place in places]).words]


def tables() -> str:
    """Everything that filters in this network namespace, without what has been counted."""
    command = ["nft", "--stateless", "list", "ruleset"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_each_place_is_reached_without_the_filter_and_not_with_it(site, engine):
    with (
        unbridged(),
        elsewhere(engine, NAS, NAS_SERVER),
        elsewhere(engine, METADATA, METADATA_SERVER),
        elsewhere(engine, CAMPUS, CAMPUS_SERVER),
        listening(GATEWAY) as port,
        listening(OTHER_ADDRESS) as other_port,
        pair() as (one, other),
    ):
        open_ = [(GATEWAY, site.hub.hub_port), (CAMPUS_SERVER, PORT)]
        noted = [(GATEWAY, port), (OTHER_ADDRESS, other_port), (OTHER_ADDRESS, PUBLISHED)]
        noted += [(NAS_SERVER, PORT), (METADATA_SERVER, PORT)]
        # a container that was just spoken to is known by its hardware address, so that no frame asks for it
        closed = [*noted, (str(other.address), PORT)]
        assert opened(one, *open_, *closed) == [True] * 8, "nothing else closes them"
        netfilter.establish(netfilter.filter_of(site))
        netfilter.expect(BRIDGE, one.address)
        assert opened(one, *open_, *closed) == [True] * 2 + [False] * 6
        assert reaches(str(other.address), PORT), "this machine still reaches containers"
        seen = {(seen.target, seen.port) for seen in netfilter.refused(BRIDGE) if seen.source == str(one.address)}
        assert seen >= set(noted)
        assert seen.isdisjoint(open_)
        netfilter.establish(netfilter.filter_of(site, [IPv4Address(NAS_SERVER)]))
        assert opened(one, (NAS_SERVER, PORT), (NAS_SERVER, 53)) == [False, True], "a name server in a denied network"
        netfilter.remove(BRIDGE)
        assert opened(one, *open_, *closed) == [True] * 8


def test_a_connection_from_before_the_filter_ends_with_it(site, engine):
    talk = "import socket, time\ns = socket.create_connection(('%s', %d))\nwhile True: s.send(b'x'); time.sleep(0.1)"
    with elsewhere(engine, NAS, NAS_SERVER), pair(1):
        (container,) = engine.client.containers.list(filters={"label": f"{LABEL}kind={KIND}"})
        run = engine.client.api.exec_create(container.id, ["python3", "-c", talk % (NAS_SERVER, PORT)])["Id"]
        engine.client.api.exec_start(run, detach=True)
        wait_until_sync(lambda: b" 01 " in container.exec_run(["cat", "/proc/net/tcp"]).output, 20, "it is open")
        netfilter.establish(netfilter.filter_of(site))
        wait_until_sync(lambda: not engine.client.api.exec_inspect(run)["Running"], 20, "it is cut")


def test_ipv6_is_refused_where_containers_have_it(site, engine):
    bridge, subnet, gateway = "campustest6", "fd77::/64", "fd77::1"
    ipam = {"Driver": "default", "Config": [{"Subnet": subnet, "Gateway": gateway}, {"Subnet": "10.78.0.0/24"}]}
    options = {"com.docker.network.bridge.name": bridge}
    engine.client.api.create_network("campus-six", "bridge", options=options, ipam=ipam, enable_ipv6=True)
    v6 = PacketFilter(
        bridge=bridge, subnet=IPv4Network("10.78.0.0/24"), gateway=IPv4Address("10.78.0.1"), hub_port=8081
    )
    try:
        with pair(network="campus-six") as (one, other), ExitStack() as stack:
            wait_until_sync(lambda: len(global_ipv6(other)) == 1, 20, "the container has an address")
            port = stack.enter_context(listening("::", socket.AF_INET6))
            places = [(gateway, port), (global_ipv6(other)[0], PORT)]
            wait_until_sync(lambda: opened(one, *places) == [True, True], 20, "nothing closes IPv6")
            netfilter.establish(v6)
            assert opened(one, *places) == [False, False]
            netfilter.remove(bridge)
            assert opened(one, *places) == [True, True]
    finally:
        netfilter.remove(bridge)
        engine.client.api.remove_network("campus-six")


def global_ipv6(probe: Probe) -> list[str]:
    return [address for address in probe.knock([]).ipv6 if not address.startswith("fe80:")]


def test_a_filter_that_is_made_again_is_the_same_and_a_poorer_form_is_taken_too(site):
    for forms in (tuple(Bridging), (Bridging.BY_ADDRESS,), (Bridging.NOT_AT_ALL,)):
        netfilter.establish(netfilter.filter_of(site), forms)
        once = tables()
        netfilter.establish(netfilter.filter_of(site), forms)
        assert tables() == once
        assert once.count(f"table inet {BRIDGE}-filter") == 1


def test_the_self_check_proves_each_refusal_and_leaves_nothing_behind(site, engine):
    netfilter.establish(netfilter.filter_of(site))
    before = tables()
    found = {finding.check: finding for finding in check(site)}
    assert {finding.status for finding in found.values()} == {Status.OK}, found
    assert f"{GATEWAY}:{site.hub.hub_port} answers" in found[HUB].text
    for name in ("containers", "host ports", "proxy API", "link-local and metadata", "denied networks"):
        assert "refused by our filter" in found[f"containers to {name}"].text
    assert engine.client.containers.list(all=True) == []
    assert set(tables().splitlines()) >= set(before.splitlines()), "no rule has gone or changed"


def test_without_a_filter_the_self_check_says_what_is_open(site):
    with unbridged():
        found = {finding.check: finding for finding in check(site)}
    failed = {name for name, finding in found.items() if finding.status is Status.FAIL}
    assert failed == {
        *("packet filter", "br_netfilter", "containers to containers", "containers to host ports"),
        "containers to proxy API",
    }
    assert "proves nothing" in found["containers to denied networks"].text
    assert found["packet filter"].remedy.startswith("restart the hub")


def test_what_a_killed_check_left_holds_no_lease_and_goes_with_a_later_one(site, engine, monkeypatch):
    labels = {f"{LABEL}project": "gpucampus", f"{LABEL}hub": NAME, f"{LABEL}kind": KIND}
    left = engine.client.containers.create(IMAGE, ["sleep", "600"], labels=labels)
    left.start()
    assert list_containers_once() == []
    with pair(1):
        left.reload()
        assert left.status == "running", "it may be another check's that is at work"
    monkeypatch.setattr(netprobe, "LEFT_S", -1)
    with pair(1):
        assert left.id not in [container.id for container in engine.client.containers.list(all=True)]


def test_a_firewall_that_keeps_containers_from_the_hub_is_named_with_the_rule_that_opens_it(site):
    drop = ["INPUT", "-i", BRIDGE, "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"]
    netfilter.establish(netfilter.filter_of(site))
    subprocess.run(["iptables", "-A", *drop], check=True)
    try:
        report = look(site, hub_only=True)
        (finding,) = report.findings
        assert (finding.status, report.blocked_by) == (Status.FAIL, "iptables (its chain INPUT)")
        subprocess.run(finding.remedy.split(), check=True)
        assert look(site, hub_only=True).blocked_by == "", "what is proposed is what helps"
        subprocess.run(finding.remedy.replace(" -I ", " -D ").split(), check=True)
    finally:
        subprocess.run(["iptables", "-D", *drop], check=True)


def test_make_clean_removes_the_filter(site, engine, monkeypatch):
    before = tables()
    netfilter.establish(netfilter.filter_of(site))
    assert f"{BRIDGE}-filter" in tables()
    monkeypatch.setattr(down, "_client", lambda: engine.client)
    assert down.remove_filters() == "1 removed"
    assert tables() == before
    assert down.remove_filters() == "none"
