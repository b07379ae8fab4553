"""The driver, the variants and NVIDIA's toolkit, seen on trees of files."""

import pytest

from spawner.doctor import gpus
from spawner.findings import Status
from spawner.nvml import InventoryFailure
from tests.doctor.trees import REAL_GPU, by_name, inventory_of, machine_of, settings_of, statuses

OK, WARN, FAIL = Status
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Feb 20 00:00:00 UTC 2024\n"
LOADED = {"proc/driver/nvidia/version": VERSION.format("550.54.15")}
HOOK = {"usr/bin/nvidia-container-runtime-hook": ""}
CONFIG = "etc/nvidia-container-runtime/config.toml"
SPEC = '{{"kind": "nvidia.com/gpu", "hostPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.{}"}}'
SAFE = {CONFIG: "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"}


def test_a_real_gpu_without_the_toolkit_is_one_sentence_and_never_simulated(tmp_path):
    (finding,) = gpus.toolkit(machine_of(tmp_path, REAL_GPU))
    assert finding.status is FAIL
    assert "never simulated" in finding.text
    assert "nvidia-container-toolkit" in finding.remedy


@pytest.mark.parametrize(
    ("files", "real"),
    [
        pytest.param(REAL_GPU, True, id="pci"),
        pytest.param({"dev/nvidia0": ""}, True, id="node"),
        pytest.param({name: text.replace("10de", "8086") for name, text in REAL_GPU.items()}, False, id="intel"),
        pytest.param({name: text.replace("0x0302", "0x0403") for name, text in REAL_GPU.items()}, False, id="sound"),
        pytest.param({"dev/nvidiactl": ""}, False, id="no-gpu-node"),
        pytest.param({}, False, id="nothing"),
    ],
)
def test_a_real_gpu_is_known_by_the_pci_bus_or_its_node(tmp_path, files, real):
    assert machine_of(tmp_path, files).real_gpus() is real


def test_a_machine_without_gpus_needs_no_toolkit(tmp_path):
    assert statuses(gpus.toolkit(machine_of(tmp_path))) == {"toolkit": OK}


@pytest.mark.parametrize(
    ("loaded", "installed", "status"),
    [
        pytest.param("550.54.15", "550.54.15", OK, id="same"),
        pytest.param("535.183.01", "550.54.15", FAIL, id="updated-without-a-reboot"),
        pytest.param("550.54.15", "", OK, id="library-elsewhere"),
        pytest.param("", "550.54.15", FAIL, id="not-loaded"),
    ],
)
def test_a_driver_that_was_updated_under_the_kernel_is_found(tmp_path, loaded, installed, status):
    files = dict(REAL_GPU)
    if loaded:
        files["proc/driver/nvidia/version"] = VERSION.format(loaded)
    if installed:
        files[f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{installed}"] = ""
    assert statuses(gpus.driver(machine_of(tmp_path, files))) == {"driver": status}


def test_a_running_mps_is_a_warning(tmp_path):
    found = statuses(gpus.driver(machine_of(tmp_path, {"proc/71/comm": "nvidia-cuda-mps\n", "proc/1/comm": "init\n"})))
    assert found == {"driver": OK, "driver MPS": WARN}


@pytest.mark.parametrize(
    ("config", "injection", "status"),
    [
        pytest.param("accept-nvidia-visible-devices-envvar-when-unprivileged = true", "cdi", WARN, id="true"),
        pytest.param("#accept-nvidia-visible-devices-envvar-when-unprivileged = false", "cdi", WARN, id="commented"),
        pytest.param("accept-nvidia-visible-devices-envvar-when-unprivileged = false", "cdi", OK, id="false"),
        pytest.param("accept-nvidia-visible-devices-envvar-when-unprivileged = false", "nvidia", OK, id="false-hook"),
        pytest.param("accept-nvidia-visible-devices-envvar-when-unprivileged = true", "nvidia", WARN, id="true-hook"),
        pytest.param("#accept-nvidia-visible-devices-envvar-when-unprivileged = false", "nvidia", WARN, id="comment"),
        pytest.param("accept-nvidia = = 1", "cdi", FAIL, id="broken"),
        pytest.param(None, "cdi", WARN, id="no-file"),
    ],
)
def test_gpus_by_environment_alone_are_found(tmp_path, config, injection, status):
    files = {**HOOK, "etc/cdi/n.json": SPEC.format("550.54.15")}
    if config is not None:
        files[CONFIG] = config + "\n"
    machine = machine_of(tmp_path, files, settings=settings_of(tmp_path, gpus={"injection": injection}))
    found = by_name(gpus.toolkit(machine))
    assert found["toolkit environment"].status is status
    # the hook reads the engine's request from the environment, too, which is no fault of what is closed here
    asked = found.get("toolkit requests")
    assert (asked is not None) is (status is OK and injection == "nvidia")
    assert asked is None or (asked.status is WARN and "cdi" in asked.remedy)


@pytest.mark.parametrize(
    ("spec", "injection", "status"),
    [
        pytest.param("550.54.15", "cdi", OK, id="fits"),
        pytest.param("535.183.01", "cdi", FAIL, id="older-than-the-driver"),
        pytest.param("535.183.01", "nvidia", WARN, id="older-and-not-used"),
        pytest.param("", "cdi", FAIL, id="none"),
        pytest.param("", "nvidia", OK, id="none-and-not-used"),
    ],
)
def test_a_cdi_spec_of_another_driver_is_found(tmp_path, spec, injection, status):
    files = {**HOOK, **LOADED, **SAFE}
    if spec:
        files["etc/cdi/nvidia.yaml"] = SPEC.format(spec)
    machine = machine_of(tmp_path, files, settings=settings_of(tmp_path, gpus={"injection": injection}))
    finding = by_name(gpus.toolkit(machine))["toolkit CDI"]
    assert finding.status is status
    assert status is OK or "nvidia-ctk cdi generate" in finding.remedy


@pytest.mark.parametrize(
    ("link", "cgroups", "injection", "status"),
    [
        pytest.param(True, "systemd", "nvidia", OK, id="links"),
        pytest.param(False, "systemd", "nvidia", WARN, id="systemd-without-links"),
        pytest.param(False, "cgroupfs", "nvidia", OK, id="cgroupfs"),
        pytest.param(False, "systemd", "cdi", OK, id="cdi"),
    ],
)
def test_gpus_that_a_reload_of_systemd_would_take_are_found(tmp_path, link, cgroups, injection, status):
    files = {**REAL_GPU, **HOOK, **SAFE} | ({"dev/char/195:0": ""} if link else {})
    settings = settings_of(tmp_path, gpus={"injection": injection})
    machine = machine_of(tmp_path, files, settings=settings, info={"CgroupDriver": cgroups})
    assert statuses(gpus.toolkit(machine))["toolkit device links"] is status


def test_the_hook_is_needed_where_the_settings_name_it(tmp_path):
    files = {**REAL_GPU, "usr/bin/nvidia-ctk": "", "dev/char/195:0": ""}
    assert statuses(gpus.toolkit(machine_of(tmp_path, files)))["toolkit"] is FAIL


@pytest.mark.parametrize(
    ("files", "settings", "found", "status"),
    [
        pytest.param({}, {}, inventory_of(80), OK, id="listed"),
        pytest.param({}, {}, inventory_of(), WARN, id="none-here"),
        pytest.param(REAL_GPU, {}, inventory_of(), FAIL, id="real-and-not-listed"),
        pytest.param({}, {}, InventoryFailure(reason="hangs"), FAIL, id="driver-in-trouble"),
        pytest.param({}, {"inventory": "none"}, None, OK, id="set-to-none"),
        pytest.param(REAL_GPU, {"inventory": "none"}, None, WARN, id="real-and-set-to-none"),
    ],
)
def test_what_the_driver_lists_is_compared_with_what_is_here(tmp_path, files, settings, found, status):
    machine = machine_of(tmp_path, files, settings=settings_of(tmp_path, gpus=settings), gpus=found)
    assert statuses(gpus.inventory(machine)) == {"GPUs": status}


def test_an_unhealthy_gpu_and_a_simulation_beside_a_real_one_are_told(tmp_path):
    sick = machine_of(tmp_path, gpus=inventory_of(80, unhealthy="Xid 79"))
    assert by_name(gpus.inventory(sick))["GPUs GPU-0"].status is FAIL
    machine = machine_of(
        tmp_path, REAL_GPU, settings=settings_of(tmp_path, gpus={"simulated": True}), gpus=inventory_of(80)
    )
    assert [finding.status for finding in gpus.inventory(machine)] == [WARN, OK]


CATALOG = """
version = 1
[base]
image = "b"
suite = "bookworm"
[variants.cu]
title = "CUDA"
folder = "images/cu"
image = "cu:1"
default = true
min_driver = "535.54"
architectures = [80, 90]
"""


@pytest.mark.parametrize(
    ("capabilities", "driver", "status"),
    [
        pytest.param((80, 90), "550.54", OK, id="all"),
        pytest.param((80, 70), "550.54", WARN, id="one-is-too-old"),
        pytest.param((70,), "550.54", FAIL, id="none"),
        pytest.param((80,), "470.82", FAIL, id="driver"),
        pytest.param((), "", WARN, id="no-gpu"),
    ],
)
def test_a_variant_is_told_where_it_runs(tmp_path, capabilities, driver, status):
    (tmp_path / "catalog.toml").write_text(CATALOG)
    settings = settings_of(tmp_path, catalog=tmp_path / "catalog.toml")
    machine = machine_of(tmp_path, settings=settings, gpus=inventory_of(*capabilities, driver=driver))
    assert statuses(gpus.variants(machine)) == {"variant cu": status}
