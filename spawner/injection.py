"""How a container gets the GPUs of its lease. With the inventory this is the only room that knows NVIDIA.

Each injection turns UUIDs into create arguments. The environment is set for everybody, and last: an image or a user
that asks for `all` gets nothing, since a container without GPUs always has `void`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spawner.core.model import Node
from spawner.docker_api import device_request
from spawner.settings import GPUSettings

__all__ = ["NO_GPUS", "CDIInjection", "Injected", "Injection", "NodesInjection", "NvidiaInjection", "injection_for"]

# What could widen or bend the grant is always written by us; None takes a variable of the image away.
NO_GPUS: Mapping[str, str | None] = {
    "NVIDIA_VISIBLE_DEVICES": "void",
    "NVIDIA_DRIVER_CAPABILITIES": "",
    "CUDA_VISIBLE_DEVICES": "",
    "CUDA_DEVICE_ORDER": None,
    "LD_PRELOAD": None,
}
_DRIVER_PARTS = "compute,utility"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """What a grant adds to a container: keys of the host config, bind mounts and environment."""

    host_config: Mapping[str, Any] = field(default_factory=dict)
    mounts: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=lambda: dict(NO_GPUS))


class Injection(Protocol):
    """A way to hand GPUs to a container."""

    def inject(self, uuids: Sequence[str], node: Node) -> Injected:
        """Hand over exactly these GPUs or MIG instances of the node, which may be none."""
        ...


class NvidiaInjection:
    """NVIDIA's hook behind `docker run --gpus`: one DeviceRequest, since of two only the last holds."""

    def inject(self, uuids: Sequence[str], node: Node) -> Injected:  # noqa: ARG002 - the hook knows the nodes itself
        """Name the UUIDs; the engine overwrites NVIDIA_VISIBLE_DEVICES with them."""
        if not uuids:
            return Injected()
        return Injected(
            host_config={"device_requests": [device_request("nvidia", tuple(uuids), [["gpu"]])]},
            environment=_granted(",".join(uuids)),
        )


class CDIInjection:
    """The Container Device Interface, engine 26.1 and newer."""

    def inject(self, uuids: Sequence[str], node: Node) -> Injected:  # noqa: ARG002
        """Name the UUIDs as CDI devices; `void` keeps an NVIDIA default runtime from adding more."""
        if not uuids:
            return Injected()
        names = tuple(f"nvidia.com/gpu={uuid}" for uuid in uuids)
        return Injected(
            host_config={"device_requests": [device_request("cdi", names, [])]}, environment=_granted("void")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesInjection:
    """Plain device nodes and read-only files, as the inventory and the settings name them; no hook, no CDI."""

    device_dir: str
    control: tuple[str, ...] = ("nvidiactl", "nvidia-uvm")
    files: Mapping[str, str] = field(default_factory=dict)

    def inject(self, uuids: Sequence[str], node: Node) -> Injected:
        """Pass the nodes of these GPUs and the control nodes; a KeyError names a UUID that the node does not have."""
        if not uuids:
            return Injected()
        known = {gpu.uuid: gpu.devices for gpu in node.gpus}
        known |= {mig.uuid: (*gpu.devices, *mig.devices) for gpu in node.gpus for mig in gpu.mig}
        names = dict.fromkeys((*self.control, *(name for uuid in uuids for name in known[uuid])))
        devices = [f"{self.device_dir}/{name}:/dev/{name}:rw" for name in names]
        mounts = tuple(
            {"type": "bind", "source": source, "target": target, "read_only": True}
            for source, target in self.files.items()
        )
        return Injected(host_config={"devices": devices}, mounts=mounts, environment=_granted("void"))


def injection_for(settings: GPUSettings) -> Injection:
    """Choose the injection that the settings name."""
    if settings.injection == "nvidia":
        return NvidiaInjection()
    if settings.injection == "cdi":
        return CDIInjection()
    return NodesInjection(device_dir=str(settings.device_dir), files=settings.files)


def _granted(visible: str) -> dict[str, str | None]:
    """Environment of a container with GPUs; CUDA numbers them as nvidia-smi does."""
    return {
        "NVIDIA_VISIBLE_DEVICES": visible,
        "NVIDIA_DRIVER_CAPABILITIES": _DRIVER_PARTS,
        "CUDA_VISIBLE_DEVICES": None,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "LD_PRELOAD": None,
    }
