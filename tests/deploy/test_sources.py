"""What a run would download is asked for before it begins, by the proxy of the campus."""

from pathlib import Path

import pytest

from deploy import sources
from deploy.sources import Source
from spawner.findings import Status
from tests.rig.campus_proxy import CampusProxy

NAMED = Source(what="the Debian mirror", url="http://mirror.example.org/debian/", setting="campus.apt_mirror")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_mirror_that_only_the_proxy_knows_is_reached_by_it(monkeypatch):
    proxy = CampusProxy(leads_to=9)
    with proxy.serving():
        monkeypatch.setenv("http_proxy", proxy.address)
        (found,) = sources.reach([NAMED])
    assert found.status is Status.OK
    assert proxy.asked == [NAMED.url]


@pytest.mark.parametrize("proxy", ["", "http://ann:secret@127.0.0.1:9"], ids=["none", "dead"])
def test_what_cannot_be_reached_is_named_with_its_host_and_the_proxy(proxy, monkeypatch):
    if proxy:
        monkeypatch.setenv("http_proxy", proxy)
    closed = Source(what="the Debian mirror", url="http://127.0.0.1:9/debian/", setting="campus.apt_mirror")
    (found,) = sources.reach([NAMED if proxy else closed])
    assert found.status is Status.FAIL
    assert "mirror.example.org" in found.text if proxy else "127.0.0.1:9" in found.text
    assert ("by the proxy http://127.0.0.1:9" if proxy else "http_proxy is not set") in found.text
    assert "secret" not in found.text
    assert "campus.apt_mirror" in found.remedy


def hosts(state: Path, env: dict[str, str], root: Path) -> list[str]:
    return [source.url.split("/")[2] for source in sources.needed(state, env, root)]


def test_only_what_has_not_been_fetched_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PIP_FILES", ())
    monkeypatch.setattr(sources.pip_index, "__defaults__", ((),))
    assert hosts(tmp_path, {}, tmp_path) == ["pypi.org", "registry.npmjs.org", "deb.debian.org"]
    (tmp_path / "deploy/node_modules").mkdir(parents=True)
    (tmp_path / "deploy/node_modules/.installed").touch()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/debian-bookworm-0123.partial.tar").touch()
    assert hosts(tmp_path, {}, tmp_path) == ["pypi.org", "deb.debian.org"], "half an archive is none"
    (tmp_path / "cache/debian-bookworm-0123.tar").touch()
    assert hosts(tmp_path, {"PIP_NO_INDEX": "1"}, tmp_path) == []


def test_mirrors_take_the_place_of_the_official_sources(tmp_path):
    env = {
        "PIP_INDEX_URL": "https://pip.example.org/simple",
        "npm_config_registry": "https://npm.example.org/",
        "GPUCAMPUS_APT_MIRROR": "https://apt.example.org",
    }
    assert hosts(tmp_path, env, tmp_path) == ["pip.example.org", "npm.example.org", "apt.example.org"]


@pytest.mark.parametrize(
    ("config", "env", "index"),
    [
        pytest.param("", {}, "https://pypi.org/simple", id="official"),
        pytest.param("[global]\nindex-url = https://a/simple\n", {}, "https://a/simple", id="pip's-own-file"),
        pytest.param("[global]\nindex-url = https://a/simple\n", {"PIP_INDEX_URL": "https://b"}, "https://b", id="env"),
        pytest.param("[global]\nno-index = true\n", {}, "", id="none"),
        pytest.param("[global]\nno-index = false\n", {}, "https://pypi.org/simple", id="not-none"),
        pytest.param("nonsense", {}, "https://pypi.org/simple", id="broken-file"),
    ],
)
def test_pip_s_own_configuration_says_which_index_it_asks(config, env, index, tmp_path):
    file = tmp_path / "pip.conf"
    file.write_text(config)
    assert sources.pip_index(env, (str(file),)) == index
