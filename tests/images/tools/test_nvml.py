"""The small reader of NVIDIA's library sees what the product's own reader sees; needs gcc for the stand-in library."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from deploy.demo.gpus.make import SimulatedGPUs
from gpucampus_tools import nvml

LOOK = "import json, sys; from gpucampus_tools import nvml; s = nvml.look(sys.argv[1]); print(json.dumps(s and [*s.uuids, s.driver, s.failing]))"  # noqa: E501


def seen(gpus: SimulatedGPUs) -> Any:
    """What a process of its own sees: a library is loaded once."""
    command = [sys.executable, "-c", LOOK, str(gpus.library)]
    environment = os.environ | {"PYTHONPATH": "images/tools"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


def edit(gpus: SimulatedGPUs, old: str, new: str) -> None:
    text = gpus.inventory.read_text(encoding="utf-8")
    assert old in text
    gpus.inventory.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_whole_gpus_and_the_instances_of_a_split_one_are_seen(plain_gpus: SimulatedGPUs) -> None:
    split = {device.key.partition(":")[0] for device in plain_gpus.devices if device.is_mig}
    expected = [device.uuid for device in plain_gpus.devices if device.key not in split]
    *uuids, driver, failing = seen(plain_gpus)
    assert sorted(uuids) == sorted(expected)
    assert driver
    assert failing == 0


def test_a_gpu_without_its_node_is_not_seen(own_gpus: SimulatedGPUs) -> None:
    first = own_gpus.device("0")
    (own_gpus.device_dir / first.nodes[-1]).unlink()
    assert first.uuid not in seen(own_gpus)


def test_a_lost_gpu_is_counted_and_hides_no_other(own_gpus: SimulatedGPUs) -> None:
    first, second = own_gpus.device("0"), own_gpus.device("1")
    edit(own_gpus, f"uuid = {first.uuid}", f"uuid = {first.uuid}\nlost = 1")
    found = seen(own_gpus)
    assert first.uuid not in found
    assert second.uuid in found
    assert found[-1] == 1


def test_a_driver_in_trouble_is_an_error_in_its_own_words(own_gpus: SimulatedGPUs) -> None:
    edit(own_gpus, "driver_version", "init_error = 18\ndriver_version")
    assert "DriverError" in seen(own_gpus)
    assert "status 18" in seen(own_gpus)


def test_without_a_library_nothing_is_seen() -> None:
    assert nvml.look("libno-such-library.so.1") is None


@pytest.mark.parametrize(
    ("version", "least", "is_older"),
    [
        ("525.60.13", "525.105", True),
        ("580.65.06", "580.65.06", False),
        ("99", "450.80.02", True),
        ("600", "525", False),
    ],
)
def test_drivers_are_compared_by_numbers(version: str, least: str, is_older: bool) -> None:
    assert nvml.older(version, least) is is_older
