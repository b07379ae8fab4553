"""Which engines are turned down by name, and what is wrong with network and images."""

import pytest

from deploy.image_records import record
from spawner.core.model import Variant
from spawner.doctor.engine import check_engine, judge_image, judge_network, trusted
from spawner.findings import Finding, Status
from spawner.settings import ImageSettings
from spawner.trust import ImageTrust
from tests.doctor.trees import by_name, machine_of, settings_of

OK, WARN, FAIL = Status


@pytest.mark.parametrize(
    ("version", "info", "injection", "word"),
    [
        pytest.param({"Version": "20.10.24"}, {}, "nvidia", "", id="debian"),
        pytest.param({"Version": "28.2.2"}, {}, "cdi", "", id="cdi"),
        pytest.param({"Version": "20.10.24"}, {}, "cdi", "CDI", id="too-old-for-cdi"),
        pytest.param({"Version": "19.03.8"}, {}, "nvidia", "too old", id="too-old"),
        pytest.param({"Version": "28.0"}, {"DockerRootDir": "/var/snap/docker/common"}, "nvidia", "snap", id="snap"),
        pytest.param({"Version": "28.0"}, {"SecurityOptions": ["name=rootless"]}, "nvidia", "rootless", id="rootless"),
        pytest.param({"Version": "28.0"}, {"SecurityOptions": ["name=userns"]}, "nvidia", "userns-remap", id="userns"),
        pytest.param(
            {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}, {}, "nvidia", "Podman", id="podman"
        ),
    ],
)
def test_an_engine_that_cannot_serve_is_named(tmp_path, version, info, injection, word):
    settings = settings_of(tmp_path, gpus={"injection": injection})
    (finding,) = check_engine(machine_of(tmp_path, settings=settings, version=version, info=info))
    assert finding.status is (FAIL if word else OK)
    assert word in finding.text


@pytest.mark.parametrize(("files", "remedy"), [({}, "apt-get install"), ({"usr/bin/dockerd": ""}, "systemctl restart")])
def test_an_engine_that_does_not_answer_comes_with_its_remedy(tmp_path, files, remedy):
    (finding,) = check_engine(machine_of(tmp_path, files, engine_trouble="connection refused"))
    assert finding.status is FAIL
    assert "connection refused" in finding.text
    assert remedy in finding.remedy


def test_what_the_engine_warns_of_is_told(tmp_path):
    machine = machine_of(tmp_path, info={"Warnings": ["WARNING: No swap limit support"]})
    assert by_name(check_engine(machine))["engine warning"].text == "No swap limit support"


NETWORK = {
    "IPAM": {"Config": [{"Subnet": "172.30.0.0/20"}]},
    "Options": {
        "com.docker.network.bridge.name": "gpucampus0",
        "com.docker.network.bridge.enable_icc": "false",
    },
}


@pytest.mark.parametrize(
    ("found", "status", "word"),
    [
        pytest.param(NETWORK, OK, "closed", id="ours"),
        pytest.param(None, WARN, "not there", id="missing"),
        pytest.param({**NETWORK, "Options": {}}, FAIL, "reach each other", id="open"),
        pytest.param({**NETWORK, "IPAM": {"Config": [{"Subnet": "10.0.0.0/8"}]}}, FAIL, "10.0.0.0/8", id="subnet"),
    ],
)
def test_the_bridge_is_compared_with_the_settings(found, status, word):
    finding = judge_network(found, name="gpucampus", bridge="gpucampus0", subnet="172.30.0.0/20")
    assert finding.status is status
    assert word in finding.text


def image(layers: list[str], **labels: str) -> dict[str, object]:
    named = {f"gpucampus.{key}": value for key, value in labels.items()}
    return {"Id": "sha256:0123456789abcdef", "RootFS": {"Layers": layers}, "Config": {"Labels": named}}


@pytest.mark.parametrize(
    ("found", "status", "word"),
    [
        pytest.param(image(["a", "b", "c"], variant="cpu"), OK, "0123456789ab", id="current"),
        pytest.param(None, WARN, "not built", id="missing"),
        pytest.param(image(["old", "c"], variant="cpu"), WARN, "older base", id="older-base"),
        pytest.param(image(["a", "b"]), WARN, "not of our build", id="somebody-else's"),
        pytest.param(image(["a", "b"], variant="cpu", lease="x"), FAIL, "gpucampus.lease", id="forged"),
    ],
)
def test_an_image_is_told_by_what_it_is_made_of(found, status, word):
    finding = judge_image("cpu", "gpucampus/cpu:1", found, ["a", "b"])
    assert finding.status is status
    assert word in finding.text


def test_an_image_that_is_not_the_recorded_one_is_a_failure_with_both_ids(tmp_path):
    cpu = Variant(name="cpu", title="CPU", image="gpucampus/cpu:1")
    found = {"Id": "sha256:" + "a" * 64}
    trust = ImageTrust(tmp_path, ImageSettings())
    good = Finding("image cpu", Status.OK, "is there")
    record("cpu", found["Id"], "1", state=tmp_path)
    assert trusted(good, cpu, found, trust) is good
    record("cpu", "sha256:" + "b" * 64, "2", state=tmp_path)
    said = trusted(good, cpu, found, trust)
    assert (said.status, said.remedy) == (Status.FAIL, "gpucampus images build cpu")
    assert "here is sha256:aaaaaaaaaaaa, recorded is sha256:bbbbbbbbbbbb" in said.text
    assert trusted(good, None, found, trust) is good, "the base is nobody's choice"
