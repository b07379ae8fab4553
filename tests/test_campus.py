"""What the hub, builds and containers get of the campus network."""

import os
import ssl
import urllib.request
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from spawner import campus
from spawner.campus import BUNDLE_INSIDE, CA_VARIABLES, Campus, CampusError, ensure_bundle, inside, proxies, variables
from tests.rig.authority import Authority

SUBNET = IPv4Network("172.30.0.0/20")
OURS = {"localhost", ".localhost", "127.0.0.1", "::1", "172.30.0.1", "172.30.0.0/20"}
PROXY = "http://proxy.example.org:3128"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def test_without_a_proxy_nothing_is_set():
    assert proxies(Campus(no_proxy=("a.example.org",)), {}, SUBNET) == {}
    assert inside(Campus(), SUBNET) == {}


@pytest.mark.parametrize(
    ("campus", "given", "http", "https"),
    [
        pytest.param(Campus(http_proxy=PROXY), {}, PROXY, PROXY, id="one-for-both"),
        pytest.param(Campus(https_proxy=PROXY), {}, None, PROXY, id="https-alone"),
        pytest.param(Campus(), {"http_proxy": PROXY}, PROXY, None, id="the-environment's"),
        pytest.param(Campus(), {"HTTPS_PROXY": PROXY}, None, PROXY, id="in-capitals"),
        pytest.param(
            Campus(http_proxy="http://own:1"), {"http_proxy": PROXY}, "http://own:1", "http://own:1", id="own"
        ),
        pytest.param(
            Campus(http_proxy="http://own:1"), {"https_proxy": PROXY}, "http://own:1", "http://own:1", id="own2"
        ),
    ],
)
def test_settings_go_before_the_environment(campus, given, http, https):
    found = proxies(campus, given, SUBNET)
    assert (found.get("http_proxy"), found.get("https_proxy")) == (http, https)
    assert {key for key in found if key.isupper()} == {key.upper() for key in found if key.islower()}


def test_this_machine_and_its_containers_are_never_reached_by_the_proxy(monkeypatch):
    given = {"no_proxy": "sso.example.org, localhost", "https_proxy": PROXY}
    found = proxies(Campus(http_proxy=PROXY, no_proxy=(".lab.example.org",)), given, SUBNET)
    hosts = found["no_proxy"].split(",")
    assert OURS | {"sso.example.org", ".lab.example.org"} == set(hosts)
    assert len(hosts) == len(set(hosts))
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    for host in ("localhost:8001", "ann.localhost", "127.0.0.1", "172.30.0.1:8081", "gpu1.lab.example.org"):
        assert urllib.request.proxy_bypass(host), host
    assert not urllib.request.proxy_bypass("pypi.org")


def test_variables_are_only_what_is_not_there_already():
    given = {"http_proxy": PROXY, "PIP_INDEX_URL": "https://mirror.example.org/simple"}
    found = variables(
        Campus(pip_index="https://mirror.example.org/simple", npm_registry="https://npm.example.org"),
        given,
        SUBNET,
        None,
    )
    assert "http_proxy" not in found
    assert "PIP_INDEX_URL" not in found
    assert found["npm_config_registry"] == "https://npm.example.org"
    assert "172.30.0.1" in found["no_proxy"]


def test_containers_get_the_settings_and_nothing_of_the_hub_s_environment(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://ann:secret@proxy.example.org:3128")
    found = inside(Campus(http_proxy=PROXY, ca_file=Path("/x.pem"), pip_index="https://mirror.example.org"), SUBNET)
    assert not any("secret" in value for value in found.values())
    assert found["https_proxy"] == PROXY
    assert {found[name] for name in CA_VARIABLES} == {BUNDLE_INSIDE}
    assert found["PIP_INDEX_URL"] == "https://mirror.example.org"


def test_the_bundle_trusts_the_system_s_authorities_and_the_campus_s_own(authority, tmp_path):
    other = Authority(tmp_path / "other")
    bundle = ensure_bundle(authority.certificate, tmp_path / "state", (tmp_path / "none", other.certificate))
    context = ssl.create_default_context(cafile=str(bundle))
    assert context.cert_store_stats()["x509_ca"] == 2
    assert bundle.stat().st_mode & 0o777 == 0o644, "people in containers read it"
    before = bundle.stat().st_ino
    assert ensure_bundle(authority.certificate, tmp_path / "state", (other.certificate,)).stat().st_ino == before
    assert ensure_bundle(authority.certificate, tmp_path / "state", ()).stat().st_ino != before, (
        "a file that containers hold is replaced, never written over"
    )


@pytest.mark.parametrize(
    "content", [None, b"", b"no certificate", b"\xff\xfe"], ids=["gone", "empty", "text", "binary"]
)
def test_a_file_without_certificates_is_one_sentence(content, tmp_path):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CampusError, match=r"^campus\.ca_file = .*/ca\.pem: .*PEM form$"):
        ensure_bundle(file, tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_applied_they_stand_in_this_process_s_environment(authority, tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", *CA_VARIABLES):
        monkeypatch.setenv(name, "")
        monkeypatch.setenv(name.upper(), "")
    campus.apply(Campus(http_proxy=PROXY, ca_file=authority.certificate), SUBNET, tmp_path)
    assert os.environ["https_proxy"] == PROXY
    assert os.environ["SSL_CERT_FILE"] == str(tmp_path / "ca-bundle.pem")
