"""A container of a built image as a person gets it; tests may change what the image says of itself."""

import json
from pathlib import Path
from typing import Any

import docker

__all__ = ["PERSON", "options", "read_only", "write_variant"]

PERSON = "200000:200000"


def write_variant(folder: Path, **said: object) -> Path:
    """Write what an image says of itself; the built CPU variant's own, where nothing else is asked for."""
    own = {"variant": "cpu", "torch": "2.13.0", "cuda": "", "python": "3.11", "min_driver": "", "architectures": []}
    folder.chmod(0o755)
    file = folder / "variant.json"
    file.write_text(json.dumps({**own, **said}))
    return file


def read_only(source: Path | str, target: str) -> docker.types.Mount:
    """Mount a file or folder so that nobody inside can change it."""
    return docker.types.Mount(target, str(source), type="bind", read_only=True)


def options(variant: Path | None, **more: Any) -> dict[str, Any]:
    """Create arguments of a server's container with the programs in it; no network, a root that cannot be written."""
    mounts = {variant: "/etc/gpucampus/variant.json"} if variant else {}
    return {
        "user": PERSON,
        "read_only": True,
        "network_mode": "none",
        "init": True,
        "tmpfs": {"/tmp": "size=256m,mode=1777,exec,nosuid,nodev", "/home/person": "uid=200000,gid=200000"},
        "environment": {"HOME": "/home/person", **more.pop("environment", {})},
        "working_dir": "/home/person",
        "mounts": [
            *(
                docker.types.Mount(target, str(source), type="bind", read_only=True)
                for source, target in mounts.items()
            ),
            *more.pop("mounts", []),
        ],
        **more,
    }
