"""The settings, and traits that no class knows."""

import pytest
from traitlets.config import Config

from spawner.doctor import config, config_child
from spawner.findings import Status
from tests.doctor.trees import by_name, machine_of, settings_of, statuses
from tests.rig.authority import Authority

OK, WARN, FAIL = Status
CATALOG = """
version = 1
[base]
image = "b"
suite = "bookworm"
[variants.x]
title = "X"
folder = "images/x"
image = "x:1"
default = true
roles = ["professor"]
"""


def test_settings_that_cannot_be_used_are_one_finding_with_their_words(tmp_path):
    machine = machine_of(tmp_path)
    object.__setattr__(machine, "trouble", "hub.nmae is not a setting")
    (finding,) = config.check_settings(machine)
    assert (finding.status, finding.text) == (FAIL, "hub.nmae is not a setting")


@pytest.mark.parametrize(
    ("text", "status"), [(None, OK), (CATALOG, WARN), ("version = 7", FAIL)], ids=["ours", "unknown-role", "broken"]
)
def test_the_catalog_is_looked_at_with_the_settings(tmp_path, text, status):
    sections = {}
    if text is not None:
        (tmp_path / "catalog.toml").write_text(text)
        sections["catalog"] = tmp_path / "catalog.toml"
    found = statuses(config.check_settings(machine_of(tmp_path, settings=settings_of(tmp_path, **sections))))
    assert found == {"settings": OK, "settings catalog": status}


def test_secrets_that_others_can_read_are_found(tmp_path):
    settings = settings_of(tmp_path)
    secrets = settings.state / "secrets"
    secrets.mkdir(parents=True)
    secrets.chmod(0o755)
    machine = machine_of(tmp_path, settings=settings)
    assert by_name(config.check_settings(machine))["settings secrets"].status is FAIL
    secrets.chmod(0o700)
    assert "settings secrets" not in statuses(config.check_settings(machine))


def test_certificates_of_the_campus_that_cannot_be_used_are_a_finding_of_their_own(tmp_path):
    file = tmp_path / "ca.pem"
    machine = machine_of(tmp_path, settings=settings_of(tmp_path, campus={"ca_file": file}))
    missing = by_name(config.check_settings(machine))["settings campus"]
    assert (missing.status, "campus.ca_file" in missing.text) == (FAIL, True)
    file.write_text("no certificates")
    assert statuses(config.check_settings(machine))["settings campus"] is FAIL
    assert statuses(config.check_settings(machine_of(tmp_path, settings=settings_of(tmp_path)))).keys() == {
        "settings",
        "settings catalog",
    }
    good = settings_of(tmp_path, campus={"ca_file": Authority(tmp_path / "ca").certificate})
    assert statuses(config.check_settings(machine_of(tmp_path, settings=good)))["settings campus"] is OK


WIRING = """
import sys
from pathlib import Path
from dockerspawner import DockerSpawner
from spawner import auth, hub_api, runtime
c = get_config()
runtime.prepare(None)
c.JupyterHub.bind_url = auth.discover("https://sso.invalid")["token_endpoint"]
c.JupyterHub.services = [{"name": "x", "api_token": hub_api.ensure_token(Path("/nonexistent"), "x")}]
c.JupyterHub.spawner_class = DockerSpawner
c.Spawner.image = "a trait of the class below"
c.DockerSpawner.remove = True
"""


def test_a_trait_or_class_that_nobody_knows_is_named_with_its_place_and_what_was_meant(tmp_path):
    folder = tmp_path / "config.d"
    folder.mkdir()
    own = folder / "10-own.py"
    own.write_text("c.DockerSpawner.no_such_trait = 1\n\nc.DockerSpawer.image = 'x'\nc.Spawner.imag = 'y'\n")
    wiring = tmp_path / "jupyterhub_config.py"
    wiring.write_text(f"{WIRING}load_subconfig({str(own)!r})\n")
    machine = machine_of(tmp_path, settings=settings_of(tmp_path, config_dir=folder))
    found = {finding.text.split()[0]: finding for finding in config.traits(machine, wiring)}
    assert set(found) == {"c.DockerSpawner.no_such_trait", "c.DockerSpawer", "c.Spawner.imag"}
    assert {finding.status for finding in found.values()} == {FAIL}
    assert f"{own} line 1" in found["c.DockerSpawner.no_such_trait"].remedy
    assert "did you mean DockerSpawner?" in found["c.DockerSpawer"].text
    assert "did you mean image?" in found["c.Spawner.imag"].text


def test_a_class_that_is_not_there_is_named():
    with pytest.raises(SystemExit, match=r"c\.JupyterHub\.spawner_class"):
        config_child.unknown(Config({"JupyterHub": {"spawner_class": "no.such.Class"}}))


def test_a_configuration_that_does_not_load_says_why(tmp_path, monkeypatch):
    wiring, python = tmp_path / "jupyterhub_config.py", tmp_path / "python"
    wiring.touch()
    python.write_text("#!/bin/sh\necho Traceback >&2\necho NameError: oops >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    (finding,) = config.traits(machine_of(tmp_path, settings=settings_of(tmp_path)), wiring)
    assert (finding.status, finding.text) == (FAIL, "the configuration does not load: NameError: oops")


def test_a_configuration_that_waits_for_ever_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "LIMIT_S", 0.5)
    wiring = tmp_path / "jupyterhub_config.py"
    wiring.write_text("import signal; signal.pause()\n")
    (finding,) = config.traits(machine_of(tmp_path, settings=settings_of(tmp_path)), wiring)
    assert "did not load within" in finding.text
