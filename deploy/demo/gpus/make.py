"""Make simulated GPUs from one inventory file: the stand-in NVML library, the device nodes and a CDI spec.

    python -m deploy.demo.gpus.make FOLDER [--inventory FILE] [--plain]

Needs only the standard library and gcc. Nothing is loaded or installed: the nodes have no driver behind them, so
opening one that the device cgroup lets pass gives ENXIO, and opening a refused one gives EPERM. Running it again
changes only what differs.
"""

import argparse
import configparser
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Device", "SimulatedGPUs", "SimulationError", "build", "cdi_spec", "mig_minors", "read_inventory"]

HERE = Path(__file__).resolve().parent
INVENTORY = HERE / "inventory.ini"
SOURCES = tuple(sorted([*HERE.glob("*.c"), *HERE.glob("*.h")]))

# No _GNU_SOURCE and no fortified calls: the library is built here and runs in containers with an older glibc.
FLAGS = (
    *("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror"),
    *("-O1", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"),
)

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
# NVIDIA takes dynamic majors for these two. Here they come from the range that Linux sets aside for local use, which no
# driver is ever given: a node must not open somebody else's device.
UVM_MAJOR = 120
CAPS_MAJOR = 121
# /proc/driver/nvidia-caps/mig-minors: 15 instances of 9 nodes for each GPU, behind two general ones.
CAP_FIRST, CAP_PER_GPU, CAP_PER_INSTANCE = 3, 135, 9

COMMON = ("nvidiactl", "nvidia-uvm")
GENERAL_KEYS = {"driver_version", "nvml_version", "cuda_version", "init_error"}
COMMON_KEYS = {"uuid", "memory_mib", "used_mib", "reserved_mib", "process", "lost"}
GPU_KEYS = COMMON_KEYS | {
    "name",
    "minor",
    "bus_id",
    "compute_capability",
    "temperature",
    "power_mw",
    "power_limit_mw",
    "utilization",
    "memory_utilization",
    "mig",
    "nvlink",
    "ecc_uncorrected",
    "remap_pending",
    "remap_failed",
    "retirement_pending",
    "recovery_action",
}
MIG_KEYS = COMMON_KEYS | {"profile", "gpu_instance", "compute_instance", "slices", "multiprocessors"}


class SimulationError(RuntimeError):
    """The simulated GPUs cannot be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU or a MIG instance of the inventory. `nodes` are names below the device folder."""

    key: str  # "0", or "3:0" for a MIG instance
    uuid: str
    nodes: tuple[str, ...]
    is_mig: bool = False
    mig_enabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGPUs:
    """Where the parts are, and what they hold."""

    folder: Path
    devices: tuple[Device, ...]

    @property
    def library(self) -> Path:
        """The stand-in libnvidia-ml.so.1; it finds the inventory and the nodes beside itself."""
        return self.folder / "libnvidia-ml.so.1"

    @property
    def inventory(self) -> Path:
        """The inventory in use; the library reads it again when it changes."""
        return self.folder / "inventory.ini"

    @property
    def device_dir(self) -> Path:
        """The folder of the device nodes, in the place of the host's /dev."""
        return self.folder / "dev"

    @property
    def mig_minors(self) -> Path:
        """Which nodes belong to which MIG instance, in the form of the driver's /proc/driver/nvidia-caps/mig-minors."""
        return self.device_dir / "mig-minors"

    @property
    def cdi_dir(self) -> Path:
        """The folder of the CDI spec."""
        return self.folder / "cdi"

    @property
    def files(self) -> dict[str, str]:
        """What to mount into a container, and where."""
        return {
            str(self.library): f"/usr/lib/{platform.machine()}-linux-gnu/libnvidia-ml.so.1",
            str(self.inventory): "/etc/gpucampus-nvml.ini",
        }

    def device(self, name: str) -> Device:
        """The device with a key or UUID."""
        return next(device for device in self.devices if name in (device.key, device.uuid))


def read_inventory(path: Path) -> tuple[Device, ...]:
    """Read and check an inventory; SimulationError names what it refuses."""
    ini = configparser.ConfigParser(strict=False, interpolation=None)
    try:
        ini.read_string("[general]\n" + path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, configparser.Error) as error:
        raise SimulationError(f"{path} cannot be used as an inventory ({error})") from error
    _check_keys(path, "general", set(ini["general"]), GENERAL_KEYS)
    devices: list[Device] = []
    for title in ini.sections()[1:]:
        match = re.fullmatch(r"gpu (\d+)|mig (\d+)/(\d+)", title)
        if match is None:
            raise SimulationError(f"{path}: [{title}] is not a section; allowed are [gpu N] and [mig N/I]")
        section = ini[title]
        _check_keys(path, title, set(section), GPU_KEYS if match[1] else MIG_KEYS)
        devices.append(_gpu(match[1], section) if match[1] else _mig(path, match[2], match[3], section, devices))
    _check_links(path, ini)
    uuids = [device.uuid for device in devices]
    if len(set(uuids)) < len(uuids) or "" in uuids:
        raise SimulationError(f"{path}: every GPU and MIG instance needs a uuid of its own")
    return tuple(devices)


def _check_keys(path: Path, title: str, given: set[str], allowed: set[str]) -> None:
    for key in sorted(given - allowed):
        raise SimulationError(f"{path}: {key} is not a key of [{title}]; allowed are {', '.join(sorted(allowed))}")


def _check_links(path: Path, ini: configparser.ConfigParser) -> None:
    """An NVLink has two ends, and the library answers for each by what its own section says."""
    links = {
        title.removeprefix("gpu "): re.findall(r"\d+", ini[title].get("nvlink", ""))
        for title in ini.sections()
        if title.startswith("gpu ")
    }
    for number, others in links.items():
        for other in others:
            if other == number or number not in links.get(other, ()):
                raise SimulationError(
                    f"{path}: [gpu {number}] has nvlink = {other}, but [gpu {other}] does not lead back"
                )


def _gpu(number: str, section: configparser.SectionProxy) -> Device:
    return Device(
        key=number,
        uuid=section.get("uuid", ""),
        nodes=(*COMMON, f"nvidia{section.get('minor', number)}"),
        mig_enabled=section.getboolean("mig", fallback=False),
    )


def _mig(path: Path, number: str, instance: str, section: configparser.SectionProxy, above: list[Device]) -> Device:
    parent = next((device for device in above if device.key == number), None)
    if parent is None or not parent.mig_enabled:
        raise SimulationError(f"{path}: [mig {number}/{instance}] needs a [gpu {number}] with mig = 1 above it")
    minor = int(parent.nodes[-1].removeprefix("nvidia"))
    cap = CAP_FIRST + minor * CAP_PER_GPU + section.getint("gpu_instance", fallback=0) * CAP_PER_INSTANCE
    compute = cap + 1 + section.getint("compute_instance", fallback=0)
    return Device(
        key=f"{number}:{instance}",
        uuid=section.get("uuid", ""),
        nodes=(*parent.nodes, f"nvidia-caps/nvidia-cap{cap}", f"nvidia-caps/nvidia-cap{compute}"),
        is_mig=True,
    )


def build(folder: Path, *, inventory: Path = INVENTORY, plain: bool = False) -> SimulatedGPUs:
    """Make everything below a folder. An inventory that is there already stays, so that changes to it are kept.

    With `plain` the nodes are ordinary files, which need no root; the library takes them, a container engine does not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    own = folder / "inventory.ini"
    if not own.exists():
        shutil.copyfile(inventory, own)
    gpus = SimulatedGPUs(folder=folder, devices=read_inventory(own))
    own.chmod(0o644)
    _compile(gpus.library)
    _make_nodes(gpus, plain=plain)
    _write(gpus.mig_minors, mig_minors(gpus.devices).encode())
    gpus.cdi_dir.mkdir(exist_ok=True)
    _write(gpus.cdi_dir / "nvidia.json", json.dumps(cdi_spec(gpus), indent=1).encode())
    return gpus


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, and only when it differs: somebody may have it open or mounted."""
    if path.exists() and path.read_bytes() == content:
        return
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def _compile(library: Path) -> None:
    stamp = library.with_suffix(".stamp")
    wanted = hashlib.sha256(" ".join(FLAGS).encode() + b"".join(source.read_bytes() for source in SOURCES)).hexdigest()
    if library.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    new = library.with_name("libnvidia-ml.new")
    sources = [str(source) for source in SOURCES if source.suffix == ".c"]
    try:
        subprocess.run(
            ["gcc", *FLAGS, "-o", str(new), *sources, "-ldl", "-lpthread"], check=True, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise SimulationError(
            "The simulated GPUs need a C compiler, and gcc is not there: run apt-get install gcc libc6-dev"
        ) from error
    except subprocess.CalledProcessError as error:
        raise SimulationError(f"gcc could not build the stand-in NVML library:\n{error.stderr.strip()}") from error
    new.replace(library)
    stamp.write_text(wanted)


def _node_number(name: str) -> tuple[int, int, int]:
    """Mode, major and minor of a node."""
    if name == "nvidiactl":
        return 0o666, NVIDIA_MAJOR, CONTROL_MINOR
    if name == "nvidia-uvm":
        return 0o666, UVM_MAJOR, 0
    if name.startswith("nvidia-caps/"):
        return 0o444, CAPS_MAJOR, int(name.removeprefix("nvidia-caps/nvidia-cap"))
    return 0o666, NVIDIA_MAJOR, int(name.removeprefix("nvidia"))


def _make_nodes(gpus: SimulatedGPUs, *, plain: bool) -> None:
    gpus.device_dir.mkdir(exist_ok=True)
    names = {name for device in gpus.devices for name in device.nodes} | set(COMMON)
    for name in sorted(names):
        path = gpus.device_dir / name
        path.parent.mkdir(exist_ok=True)
        mode, major, minor = _node_number(name)
        if plain:
            path.touch()
        elif not (path.exists() and path.stat().st_rdev == os.makedev(major, minor)):
            path.unlink(missing_ok=True)
            try:
                os.mknod(path, mode | stat.S_IFCHR, os.makedev(major, minor))
            except PermissionError as error:
                raise SimulationError(f"Making the device node {path} was refused: run this as root") from error
        path.chmod(mode)
    if not plain:
        _check_reachable(gpus.device_dir / "nvidiactl")


def mig_minors(devices: tuple[Device, ...]) -> str:
    """The driver's list of capability minors, for the instances there are."""
    lines = ["config 1", "monitor 2"]
    for device in devices:
        if device.is_mig:
            gpu, *caps = (int(re.sub(r".*\D", "", name)) for name in device.nodes[len(COMMON) :])
            of_gpu = caps[0] - CAP_FIRST - gpu * CAP_PER_GPU
            instance = f"gpu{gpu}/gi{of_gpu // CAP_PER_INSTANCE}"
            lines += [f"{instance}/access {caps[0]}", f"{instance}/ci{caps[1] - caps[0] - 1}/access {caps[1]}"]
    return "\n".join(lines) + "\n"


def _check_reachable(node: Path) -> None:
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENODEV):
            raise SimulationError(
                f"The device node {node} cannot be opened ({os.strerror(error.errno or 0)}): put the state folder on a "
                "file system that is not mounted nodev, with GPUCAMPUS_STATE"
            ) from error


def cdi_spec(gpus: SimulatedGPUs) -> dict[str, object]:
    """The CDI spec of all devices: each by key and by UUID, and "all"."""

    def nodes(names: tuple[str, ...]) -> list[dict[str, str]]:
        return [{"path": f"/dev/{name}", "hostPath": str(gpus.device_dir / name)} for name in names]

    everything = tuple(sorted({name for device in gpus.devices for name in device.nodes} - set(COMMON)))
    named = [(name, device.nodes[len(COMMON) :]) for device in gpus.devices for name in (device.key, device.uuid)]
    options = ["ro", "nosuid", "nodev", "bind"]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": nodes(names)}}
            for name, names in [*named, ("all", everything)]
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": nodes(COMMON),
            "mounts": [
                {"hostPath": host, "containerPath": inside, "options": options} for host, inside in gpus.files.items()
            ],
        },
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make simulated GPUs below a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inventory", type=Path, default=INVENTORY, help="used when the folder has none yet")
    parser.add_argument("--plain", action="store_true", help="ordinary files in place of device nodes; needs no root")
    arguments = parser.parse_args()
    try:
        gpus = build(arguments.folder, inventory=arguments.inventory, plain=arguments.plain)
    except SimulationError as error:
        print(error, file=sys.stderr)
        return 1
    for device in gpus.devices:
        print(device.key, device.uuid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
