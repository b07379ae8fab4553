"""Addresses that are somebody else's are found before our network is made, and free ones proposed."""

import json
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner import routes, runtime
from spawner.routes import Route
from spawner.settings import load
from tests.test_settings import LEAST, write

OURS = IPv4Network("172.30.0.0/20")
CAMPUS = Route(IPv4Network("172.16.0.0/12"), "eth0")


def test_routes_are_read_but_for_those_that_say_nothing():
    rows = [
        {"dst": "default", "gateway": "10.0.0.1", "dev": "eth0"},
        {"dst": "10.0.0.0/24", "dev": "eth0", "prefsrc": "10.0.0.9"},
        {"dst": "172.16.0.0/12", "nexthops": [{"gateway": "10.0.0.1", "dev": "eth0"}]},
        {"type": "local", "dst": "10.0.0.9", "dev": "eth0", "table": "local"},
        {"type": "unreachable", "dst": "192.168.0.0/16"},
        {"dst": "10.8.0.1", "dev": "tun0"},
    ]
    assert routes.parse(json.dumps(rows)) == (
        Route(IPv4Network("10.0.0.0/24"), "eth0"),
        CAMPUS,
        Route(IPv4Network("10.8.0.1/32"), "tun0"),
    )
    assert routes.parse("") == ()


@pytest.mark.parametrize("network", ["172.16.0.0/12", "172.30.0.0/20", "172.30.1.0/24", "172.30.1.7/32"])
def test_a_route_that_overlaps_clashes_unless_it_is_our_own(network):
    route = Route(IPv4Network(network), "eth0")
    assert routes.clash(OURS, "gpucampus0", [Route(IPv4Network("10.0.0.0/8"), "eth0"), route]) == route
    assert routes.clash(OURS, "eth0", [route]) is None


def test_neighbours_do_not_clash():
    assert routes.clash(OURS, "gpucampus0", [Route(IPv4Network("172.30.16.0/20"), "eth0")]) is None


networks = st.builds(
    lambda base, prefix: IPv4Network((base, prefix), strict=False),
    st.sampled_from([10 << 24, (172 << 24) + (16 << 16), (192 << 24) + (168 << 16)]).flatmap(
        lambda start: st.integers(start, start + (1 << 20) - 1)
    ),
    st.integers(7, 32),
)


@given(st.lists(networks, max_size=8), st.integers(16, 28))
def test_what_is_proposed_is_private_and_free(taken, prefix):
    found = routes.free_subnet(prefix, [Route(network, "eth0") for network in taken[::2]], taken[1::2])
    if found is None:
        assert len(taken) >= 3, "three private ranges are not full of two networks"
        return
    assert found.is_private
    assert found.prefixlen == prefix
    assert not any(found.overlaps(network) for network in taken)


def test_a_full_range_is_left_for_the_next():
    assert routes.free_subnet(20, []) == IPv4Network("172.31.240.0/20")
    assert routes.free_subnet(20, [CAMPUS]) == IPv4Network("10.255.240.0/20")
    everything = [CAMPUS, Route(IPv4Network("10.0.0.0/8"), "a"), Route(IPv4Network("192.168.0.0/16"), "b")]
    assert routes.free_subnet(20, everything) is None
    assert "addresses that are free" in routes.said(OURS, "gpucampus0", everything)[1]


def test_the_hub_does_not_start_on_addresses_of_others_and_proposes_free_ones(tmp_path, monkeypatch):
    settings = load(write(tmp_path, f'{LEAST}[network]\nbridge = "nosuchbridge0"\ndenied = ["10.255.0.0/16"]\n'))
    monkeypatch.setattr(routes, "read", lambda: (CAMPUS,))
    with pytest.raises(SystemExit) as refused:
        runtime.prepare(settings)
    said = str(refused.value)
    assert "172.30.0.0/20 are in use: the route to 172.16.0.0/12 leaves through eth0" in said
    assert said.endswith('set network.subnet = "10.254.240.0/20" in the settings')


def test_a_network_that_is_there_stays(monkeypatch):
    monkeypatch.setattr(routes, "read", lambda: (CAMPUS,))
    assert routes.obstacle(OURS, "lo") == "", "its interface exists, so servers may be on it"
    assert routes.obstacle(OURS, "nosuchbridge0")


def test_a_machine_without_the_program_ip_is_taken_as_it_is(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert routes.read() == ()
