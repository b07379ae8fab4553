"""Sign-in behind a campus proxy and a private certificate authority, both real."""

from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from tornado.httpclient import HTTPClientError

from spawner import campus
from spawner.auth import CampusAuthenticator, ProviderError, discover
from spawner.campus import CA_VARIABLES, Campus
from tests.rig.authority import Authority
from tests.rig.campus_proxy import CampusProxy, Provider

SUBNET = IPv4Network("172.30.0.0/20")
ISSUER = "https://sso.example.org"  # a name that only the proxy knows


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in (*CA_VARIABLES, "SSL_CERT_DIR"):
        # set and taken away again, so that what a test applies is taken back after it
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        for each in (name, name.upper()):
            monkeypatch.setenv(each, "")
            monkeypatch.delenv(each)


@pytest.fixture
def provider(authority: Authority) -> Iterator[Provider]:
    server = Provider(authority, ISSUER)
    with server.serving():
        yield server


@pytest.fixture
def proxy(provider: Provider) -> Iterator[CampusProxy]:
    server = CampusProxy(provider.port)
    with server.serving():
        yield server


def use(authority: Authority | None, proxy: CampusProxy | None, state: Path) -> None:
    part = Campus(
        http_proxy=proxy.address if proxy else "", ca_file=authority.certificate if authority is not None else None
    )
    campus.apply(part, SUBNET, state)


def test_a_provider_of_the_campus_s_own_authority_is_found_with_its_file(authority, provider, tmp_path):
    provider.issuer = f"https://localhost:{provider.port}"
    use(authority, None, tmp_path)
    assert discover(provider.issuer)["token_endpoint"] == f"{provider.issuer}/token_endpoint"


def test_without_the_file_one_sentence_names_the_setting(provider):
    provider.issuer = f"https://localhost:{provider.port}"
    with pytest.raises(ProviderError, match=r"certificate is not trusted here .* campus\.ca_file$") as caught:
        discover(provider.issuer)
    assert "\n" not in str(caught.value)
    assert provider.asked == []


def test_a_provider_outside_is_found_by_the_proxy(authority, provider, proxy, tmp_path):
    use(authority, proxy, tmp_path)
    assert discover(ISSUER)["issuer"] == ISSUER
    assert proxy.asked == ["sso.example.org:443"]


def test_a_proxy_that_does_not_answer_is_named(authority, tmp_path):
    campus.apply(Campus(http_proxy="http://127.0.0.1:9", ca_file=authority.certificate), SUBNET, tmp_path)
    with pytest.raises(ProviderError, match=r"asked by the proxy http://127\.0\.0\.1:9$"):
        discover(ISSUER)


async def test_both_calls_of_a_sign_in_go_by_the_proxy_and_trust_the_authority(authority, provider, proxy, tmp_path):
    use(authority, proxy, tmp_path)
    authenticator = CampusAuthenticator(
        token_url=f"{ISSUER}/token_endpoint", userdata_url=f"{ISSUER}/userinfo_endpoint"
    )
    token = await authenticator.get_token_info(None, {"code": "c o d e"})
    assert (token["access_token"], token["body"]) == ("t", "code=c+o+d+e")
    assert (await authenticator.token_to_user({"access_token": "t", "token_type": "Bearer"}))["bearer"] == "Bearer t"
    assert proxy.asked == ["sso.example.org:443"] * 2


async def test_a_sign_in_does_not_trust_a_provider_of_an_unknown_authority(provider, proxy, tmp_path):
    use(None, proxy, tmp_path)
    authenticator = CampusAuthenticator(token_url=f"{ISSUER}/token_endpoint")
    with pytest.raises(HTTPClientError, match="certificate verify failed"):
        await authenticator.httpfetch(authenticator.token_url)
    assert provider.asked == []


async def test_a_refusal_of_the_provider_keeps_its_status(authority, provider, proxy, tmp_path):
    use(authority, proxy, tmp_path)
    with pytest.raises(HTTPClientError) as caught:
        await CampusAuthenticator().httpfetch(f"{ISSUER}/elsewhere")
    assert caught.value.code == 404
    assert caught.value.response is not None
    assert b"not_found" in caught.value.response.body


async def test_what_no_proxy_names_is_asked_directly(authority, provider, proxy, tmp_path):
    provider.issuer = f"https://localhost:{provider.port}"
    use(authority, proxy, tmp_path)
    discover(provider.issuer)
    await CampusAuthenticator().httpfetch(f"{provider.issuer}/userinfo_endpoint")
    assert len(provider.asked) == 2
    assert proxy.asked == []
