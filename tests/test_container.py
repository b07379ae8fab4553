"""What every container gets of the campus network."""

from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace

import pytest
from dockerspawner import DockerSpawner

from spawner import container, runtime
from spawner.campus import BUNDLE_INSIDE, Campus
from spawner.core.model import Person
from spawner.docker_spawner import GPUDockerSpawner

PROXY = "http://proxy.example.org:3128"
PERSON = Person(sub="s", uid=200001, hub_name="ann", home="200001")


def test_certificates_of_the_campus_are_mounted_read_only_where_there_are_some():
    assert container.certificates(Campus(), Path("/state")) == []
    (mount,) = container.certificates(Campus(ca_file=Path("/etc/campus.pem")), Path("/state"))
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == ("/state/ca-bundle.pem", BUNDLE_INSIDE, True)


def test_a_server_is_told_the_proxy_whatever_was_asked_for_and_keeps_its_identity(monkeypatch: pytest.MonkeyPatch):
    campus = Campus(http_proxy=PROXY)
    settings = SimpleNamespace(
        campus=SimpleNamespace(values=lambda: campus), network=SimpleNamespace(subnet=IPv4Network("172.30.0.0/20"))
    )
    monkeypatch.setattr(runtime, "current", lambda: SimpleNamespace(settings=settings))
    monkeypatch.setattr(DockerSpawner, "get_env", lambda _: {"https_proxy": "http://evil", "HOME": "/", "LANG": "C"})
    spawner = GPUDockerSpawner(
        user=SimpleNamespace(name="ann"), orm_spawner=SimpleNamespace(name="", user_options={}, server=None)
    )
    spawner._person = PERSON
    found = spawner.get_env()
    assert (found["https_proxy"], found["HOME"], found["LANG"]) == (PROXY, "/home/ann", "C")
    assert "172.30.0.1" in found["no_proxy"].split(","), "the hub's API is never asked by the proxy"


def test_the_images_check_is_told_the_lease_and_nobody_else_can_say_another(monkeypatch: pytest.MonkeyPatch):
    settings = SimpleNamespace(
        campus=SimpleNamespace(values=Campus), network=SimpleNamespace(subnet=IPv4Network("172.30.0.0/20"))
    )
    monkeypatch.setattr(runtime, "current", lambda: SimpleNamespace(settings=settings))
    monkeypatch.setattr(DockerSpawner, "get_env", lambda _: {"GPUCAMPUS_GPUS": "GPU-of-somebody"})
    spawner = GPUDockerSpawner(
        user=SimpleNamespace(name="ann"), orm_spawner=SimpleNamespace(name="", user_options={}, server=None)
    )
    spawner._person, spawner._gpus = PERSON, ("GPU-a", "GPU-b")
    assert spawner.get_env()["GPUCAMPUS_GPUS"] == "GPU-a,GPU-b"
    spawner._gpus = ()
    assert spawner.get_env()["GPUCAMPUS_GPUS"] == ""
