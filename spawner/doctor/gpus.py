"""GPUs: the driver, the variants that run here, and NVIDIA's container toolkit; files are below the machine's root."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from spawner.core.catalog import runs_on
from spawner.core.model import Variant
from spawner.doctor.engine import read_catalog
from spawner.doctor.machine import Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding
from spawner.messages import sentence
from spawner.nvml import Inventory, InventoryFailure

__all__ = ["driver", "inventory", "kernel_driver", "library_driver", "toolkit", "variants"]

_PROGRAMS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/nvidia/toolkit")
_HOOK = "nvidia-container-runtime-hook"
_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_INSTALL = "apt-get install -y nvidia-container-toolkit && systemctl restart docker"
_GENERATE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_LINKS = "nvidia-ctk system create-dev-char-symlinks --create-all (and its udev rule, so that they stay)"
_SPECS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
_LIBRARY = re.compile(r"\.so\.(\d{3,}\.\d+(?:\.\d+)?)\b")


# -- the driver -----------------------------------------------------------------------------------------------------


def inventory(machine: Machine) -> Iterator[Finding]:
    """Say what NVIDIA's library lists, and what it should."""
    wanted = machine.settings.gpus.inventory if machine.settings else "nvml"
    simulated = bool(machine.settings and machine.settings.gpus.simulated)
    real = machine.real_gpus()
    if wanted == "none":
        if real:
            remedy = 'set gpus.inventory = "nvml" to offer them'
            yield warn("GPUs", 'there are NVIDIA GPUs here, and gpus.inventory = "none" hides them', remedy)
        else:
            yield ok("GPUs", 'none, as gpus.inventory = "none" says')
        return
    if simulated and real:
        remedy = "take gpus.simulated, gpus.library and gpus.device_dir out of the settings"
        yield warn("GPUs", "the settings simulate GPUs although there are real ones here", remedy)
    try:
        listed = machine.gpus.get()
    except NotLookedAtError as error:
        listed = InventoryFailure(reason=error.why)
    yield from _listed(listed, real=real, simulated=simulated)


def _listed(found: Inventory | InventoryFailure, *, real: bool, simulated: bool) -> Iterator[Finding]:
    if isinstance(found, InventoryFailure):
        yield fail("GPUs", f"the driver does not say what there is: {found.reason}", "nvidia-smi; dmesg | grep -i xid")
        return
    gpus = found.node.gpus
    for gpu in gpus:
        if gpu.unhealthy:
            yield fail(
                f"GPUs {gpu.uuid}", f"GPU {gpu.index} is unhealthy: {gpu.unhealthy}", "docs/howto/gpu-out-of-service.md"
            )
    if gpus:
        word = "simulated " if simulated else ""
        yield ok("GPUs", f"{len(gpus)} {word}GPUs, driver {found.node.driver}, CUDA up to {found.node.cuda}")
    elif real:
        text = f"an NVIDIA GPU is in this machine and the driver lists none ({found.reason})"
        yield fail("GPUs", text, "install NVIDIA's driver and load it (modprobe nvidia), then nvidia-smi")
    else:
        text = f"there is no NVIDIA GPU in this machine ({found.reason})"
        yield warn("GPUs", text, 'set gpus.inventory = "none" if that is so')


def kernel_driver(machine: Machine) -> str:
    """The version of the driver that the kernel runs; empty where none is loaded."""
    match = _VERSION.search(machine.read("/proc/driver/nvidia/version"))
    return match[1] if match else ""


def library_driver(machine: Machine) -> str:
    """The version of the driver's library that is installed; empty where there is none."""
    found = [
        path.name
        for folder in ("usr/lib64", "usr/lib", "usr/lib/*")
        for path in machine.root.glob(f"{folder}/libnvidia-ml.so.*")
    ]
    versions = sorted(match[1] for match in map(_LIBRARY.search, found) if match)
    return versions[-1] if versions else ""


def driver(machine: Machine) -> Iterator[Finding]:
    """Say whether the loaded driver and the installed library are of one version, and whether MPS is about."""
    loaded, installed = kernel_driver(machine), library_driver(machine)
    if loaded and installed and loaded != installed:
        text = f"the kernel runs the driver {loaded} and the library is {installed}: no server can get a GPU"
        yield fail("driver", text, "reboot; then apt-mark hold the nvidia packages, so that updates wait for you")
    elif loaded:
        yield ok("driver", f"{loaded} is loaded" + ("" if installed else ", its library was not found"))
    elif machine.real_gpus():
        yield fail(
            "driver",
            "there is an NVIDIA GPU and the kernel has no NVIDIA driver loaded",
            "modprobe nvidia; dmesg | grep -i nvidia",
        )
    else:
        yield ok("driver", "none is loaded, and there is no NVIDIA GPU")
    for comm in machine.path("/proc").glob("[0-9]*/comm"):
        if machine.read(comm.relative_to(machine.root)).strip().startswith("nvidia-cuda-mps"):
            text = "NVIDIA's MPS runs on this machine; programs of servers then hang or fail with error 805"
            yield warn("driver MPS", text, "echo quit | nvidia-cuda-mps-control")
            break


def variants(machine: Machine) -> Iterator[Finding]:
    """Say which variants run on the GPUs of this machine."""
    listed, found = read_catalog(machine).variants, machine.gpus.get()
    if isinstance(found, InventoryFailure):
        raise NotLookedAtError("the GPUs are unknown")
    for variant in listed:
        yield _variant(variant, found)


def _variant(variant: Variant, found: Inventory) -> Finding:
    check = f"variant {variant.name}"
    if not variant.min_driver:
        return ok(check, "runs anywhere; needs no GPU")
    if not found.node.gpus:
        return warn(check, "needs a GPU, and there is none here", "take it out of the catalog, or add a GPU")
    refused = {gpu.index: runs_on(variant, found.node.driver, gpu.compute_capability) for gpu in found.node.gpus}
    cannot = {index: refusal for index, refusal in refused.items() if refusal is not None}
    if not cannot:
        return ok(check, f"runs on all {len(refused)} GPUs")
    first = sentence(next(iter(cannot.values())))
    remedy = f"renew the driver to {variant.min_driver} or newer, or offer an older variant"
    if len(cannot) == len(refused):
        return fail(check, f"runs on no GPU of this machine. {first}", remedy)
    return warn(check, f"does not run on the GPUs {', '.join(map(str, cannot))}. {first}", remedy)


# -- the toolkit ----------------------------------------------------------------------------------------------------


def toolkit(machine: Machine) -> Iterator[Finding]:
    """Say whether NVIDIA's container toolkit can hand out the GPUs, in the way that the settings name."""
    injection = machine.settings.gpus.injection if machine.settings else "nvidia"
    real, hook = machine.real_gpus(), _program(machine, _HOOK)
    ctk = _program(machine, "nvidia-ctk")
    if not real and not (hook or ctk):
        yield ok("toolkit", "none is installed, and there is no NVIDIA GPU")
        return
    if real and not (hook or ctk):
        text = (
            "an NVIDIA GPU is in this machine without the NVIDIA Container Toolkit: no server can get it, "
            "and it is never simulated"
        )
        yield fail("toolkit", text, _INSTALL)
        return
    if injection == "nvidia" and not hook:
        yield fail("toolkit", f'{_HOOK} is not installed, which gpus.injection = "nvidia" needs', _INSTALL)
    else:
        name = _HOOK if hook else "nvidia-ctk"
        yield ok("toolkit", f"{name} is installed" + (f", servers get GPUs by {injection}" if real else ""))
    yield from _envvar(machine, injection)
    yield _cdi(machine, injection)
    if real:
        yield _links(machine, injection)


def _program(machine: Machine, name: str) -> Path | None:
    return next((path for folder in _PROGRAMS if (path := machine.path(folder) / name).exists()), None)


def _envvar(machine: Machine, injection: str) -> Iterator[Finding]:
    """By the toolkit's default, a container's environment alone asks for GPUs wherever NVIDIA's runtime handles it.

    Closed is right however GPUs are handed out. That the engine hands a `--gpus` request to the hook by the
    environment, too, is a finding of its own; it cannot be tried without a GPU.
    """
    check, text = "toolkit environment", machine.read(_CONFIG)
    try:
        value = tomllib.loads(text).get(_ENVVAR, True)
    except tomllib.TOMLDecodeError as error:
        yield fail(check, f"{_CONFIG} cannot be read: {error}", f"nvidia-ctk config --output={_CONFIG}")
        return
    if value is False:
        yield ok(check, f"{_ENVVAR} = false")
        if injection == "nvidia":
            seen = f'{_ENVVAR} = false may keep the hook from what the engine asks for with gpus.injection = "nvidia"'
            remedy = 'gpus.injection = "cdi" with Docker 26.1 or newer, or start a server with a GPU to see'
            yield warn("toolkit requests", seen, remedy)
        return
    way = f"nvidia-ctk config --in-place --set {_ENVVAR}=false && systemctl restart docker"
    seen = f"{_ENVVAR} is not false: a container that is not ours gets GPUs by its environment alone"
    yield warn(check, seen, way if injection != "nvidia" else f'gpus.injection = "cdi", then {way}')


def _cdi(machine: Machine, injection: str) -> Finding:
    """A CDI spec names the driver's files by version, so that one of an older driver names files that are gone."""
    check, loaded = "toolkit CDI", kernel_driver(machine)
    specs = [
        path
        for folder in _SPECS
        for path in sorted(machine.path(folder).glob("*"))
        if path.suffix in (".yaml", ".yml", ".json")
        and "nvidia.com/" in path.read_text(encoding="utf-8", errors="replace")
    ]
    if not specs:
        if injection == "cdi":
            return fail(check, "there is no CDI spec for nvidia.com/gpu, so no server can get a GPU", _GENERATE)
        return ok(check, f'no spec, and gpus.injection = "{injection}" needs none')
    versions = {
        version for path in specs for version in _LIBRARY.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
    if loaded and versions and versions != {loaded}:
        text = f"the CDI spec is of the driver {', '.join(sorted(versions))} and {loaded} is loaded"
        return (fail if injection == "cdi" else warn)(check, text, _GENERATE)
    return ok(check, f"{specs[0].name} fits the driver {loaded or 'that is not loaded'}")


def _links(machine: Machine, injection: str) -> Finding:
    """Without links in /dev/char, a reload of systemd takes GPUs away from containers that hold them by the hook."""
    check = "toolkit device links"
    if any(machine.path("/dev/char").glob("195:*")):
        return ok(check, "/dev/char has links to the GPUs, so a reload of systemd takes none away")
    if injection in ("cdi", "nodes"):
        return ok(check, f'not needed: with gpus.injection = "{injection}" the engine knows the devices itself')
    cgroups = str(machine.engine.get().info.get("CgroupDriver", ""))
    if cgroups == "cgroupfs":
        return ok(check, "not needed: the engine's cgroup driver is cgroupfs")
    text = (
        f"the cgroup driver is {cgroups or 'unknown'} and /dev/char has no links to the GPUs: the next reload of "
        'systemd takes them from running servers ("Failed to initialize NVML: Unknown Error")'
    )
    return warn(check, text, _LINKS)
