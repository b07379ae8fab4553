"""Proxy, certificates and mirrors hold for what runs before any package is installed, and for the demo's servers."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy import outside
from deploy.demo.setup import Ports, settings_text
from spawner.campus import CampusError
from spawner.settings import load
from tests.rig.authority import Authority

ROOT = Path(__file__).resolve().parents[2]
OWN = """
version = 1
[network]
subnet = "10.77.0.0/24"
[campus]
http_proxy = "http://proxy.example.org:3128"
no_proxy = [".example.org"]
apt_mirror = "https://apt.example.org"
npm_registry = "https://npm.example.org"
"""


def test_the_operator_s_settings_are_found_where_the_hub_finds_them(tmp_path):
    (tmp_path / "settings.toml").write_text(OWN)
    found = outside.exports({}, tmp_path)
    assert found["https_proxy"] == "http://proxy.example.org:3128"
    assert {".example.org", "10.77.0.1", "10.77.0.0/24", "localhost"} <= set(found["no_proxy"].split(","))
    assert found["GPUCAMPUS_APT_MIRROR"] == "https://apt.example.org"
    assert found["npm_config_registry"] == "https://npm.example.org"
    named = tmp_path / "other.toml"
    named.write_text("version = 1\n")
    assert outside.exports({"GPUCAMPUS_SETTINGS": str(named)}, tmp_path) == {}


def test_without_settings_the_environment_holds_and_the_demo_s_file_is_not_believed(tmp_path):
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state/settings.toml").write_text(f"{outside.DEMO_HEADER}\n{OWN}")
    assert outside.exports({}, tmp_path) == {}
    found = outside.exports({"GPUCAMPUS_PIP_INDEX": "https://pip.example.org"}, tmp_path)
    assert found == {"PIP_INDEX_URL": "https://pip.example.org"}


def test_settings_that_are_no_toml_are_one_sentence(tmp_path):
    (tmp_path / "settings.toml").write_text("version = ")
    with pytest.raises(CampusError, match=r"settings\.toml: not valid TOML"):
        outside.exports({}, tmp_path)


def test_a_shell_takes_what_is_printed_whatever_is_in_it(tmp_path):
    authority = Authority(tmp_path / "it's own")
    env = {"PATH": os.environ["PATH"], "GPUCAMPUS_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    env |= {"GPUCAMPUS_CA_FILE": str(authority.certificate), "GPUCAMPUS_SETTINGS": str(tmp_path / "none.toml")}
    env |= {"GPUCAMPUS_PIP_INDEX": "https://x/$(touch pwned)'\"/simple"}
    script = f'eval "$({sys.executable} -m deploy.outside)"; echo "$PIP_CERT"; echo "$PIP_INDEX_URL"'
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines() == [str(tmp_path / "state/ca-bundle.pem"), env["GPUCAMPUS_PIP_INDEX"]]
    assert not (tmp_path / "pwned").exists()


def test_the_demo_s_servers_get_what_the_environment_says_but_no_password(tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("https_proxy", "http://ann:secret@proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "sso.example.org, not a host")
    monkeypatch.setenv("GPUCAMPUS_PIP_INDEX", "https://pip.example.org/simple")
    text = settings_text(tmp_path, Ports(), None)
    assert "ann" not in text
    part = tomllib.loads(text)["campus"]
    assert part["http_proxy"] == "http://proxy.example.org:3128"
    assert part["no_proxy"] == ["sso.example.org"]
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert load(file).campus.pip_index == "https://pip.example.org/simple"
