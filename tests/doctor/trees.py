"""Machines made of files and values."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spawner.core.model import GPU, Node
from spawner.doctor.machine import EngineFacts, Later, Machine
from spawner.findings import Finding, Status
from spawner.nvml import Inventory, InventoryFailure
from spawner.settings import Settings

DEBIAN = {"Version": "20.10.24", "Components": [{"Name": "Engine"}]}
PCI = "sys/bus/pci/devices/0000:3b:00.0/"
REAL_GPU = {PCI + "vendor": "0x10de\n", PCI + "class": "0x030200\n"}


def settings_of(tmp_path: Path, **sections: Any) -> Settings:
    """The least settings, with a state and homes of a test's own."""
    data: dict[str, Any] = {
        "version": 1,
        "state": tmp_path / "state",
        "sign_in": {"issuer": "https://sso.example.org", "client_id": "x", "client_secret_file": tmp_path / "secret"},
        "roles": {"student": {"groups": ["students"], "memory": "8G", "default_memory": "4G"}},
        "homes": {"root": tmp_path / "homes"},
    }
    return Settings.model_validate({**data, **sections})


def machine_of(
    root: Path,
    files: Mapping[str, str] | None = None,
    *,
    settings: Settings | None = None,
    version: Mapping[str, Any] = DEBIAN,
    info: Mapping[str, Any] | None = None,
    gpus: Inventory | InventoryFailure | None = None,
    engine_trouble: str = "",
) -> Machine:
    """A machine with these files below its root, and an engine and GPUs that say this."""
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def engine() -> EngineFacts:
        if engine_trouble:
            raise OSError(engine_trouble)
        return EngineFacts(version=version, info=info or {"DockerRootDir": "/var/lib/docker"})

    return Machine(
        root=root,
        settings=settings,
        engine=Later(engine, missing="the container engine does not answer"),
        gpus=Later(lambda: gpus or inventory_of(), missing="the GPUs are unknown"),
    )


def inventory_of(*capabilities: int, driver: str = "550.54.15", unhealthy: str = "") -> Inventory:
    """An inventory of GPUs with these compute capabilities."""
    gpus = tuple(
        GPU(
            uuid=f"GPU-{index}",
            index=index,
            name="A100",
            memory_bytes=1,
            compute_capability=capability,
            unhealthy=unhealthy,
        )
        for index, capability in enumerate(capabilities)
    )
    reason = "" if gpus else "there is no NVIDIA driver here"
    return Inventory(node=Node(name="here", gpus=gpus, driver=driver if gpus else "", cuda="12.4"), reason=reason)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Findings by their names, each of which is there once."""
    found = list(findings)
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def statuses(findings: Iterable[Finding]) -> dict[str, Status]:
    """How each finding is."""
    return {name: finding.status for name, finding in by_name(findings).items()}
