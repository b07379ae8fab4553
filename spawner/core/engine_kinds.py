"""What kind of container engine answers, by its own words: some of them cannot serve a hub at all."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

__all__ = ["EngineKind", "kind_of"]


class EngineKind(StrEnum):
    """Docker as root on this machine, or what stands in its place."""

    DOCKER = "docker"
    PODMAN = "podman"
    ROOTLESS = "rootless"
    USERNS = "userns"  # maps user ids
    SNAP = "snap"


def kind_of(info: Mapping[str, Any], version: Mapping[str, Any]) -> EngineKind:
    """Tell the kind of an engine from its answers to `info` and `version`."""
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    if any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or ()):
        return EngineKind.PODMAN
    for kind in (EngineKind.ROOTLESS, EngineKind.USERNS):
        if any(f"name={kind}" in option for option in options):
            return kind
    return EngineKind.SNAP if "/snap/" in str(info.get("DockerRootDir", "")) else EngineKind.DOCKER
