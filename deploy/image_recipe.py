"""What an image is made of: the layers of a lock, the files of the recipe, the context that the builder is handed."""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from deploy.wheels import Pin, find, parse_lock
from spawner.core import catalog
from spawner.core.model import Variant

__all__ = ["IMAGES", "LAYERS", "ROOT", "base_files", "hashed", "layers", "lock_of", "make_context", "read_catalog"]

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "images"
RECIPE, TOOLS = IMAGES / "torch", IMAGES / "tools"
LAYERS = ("nvidia", "torch", "libraries", "jupyter")  # from what changes least to what changes most
SCRIPTS = ("finish_layer.py", "install-layer", "lazy_rfc3987.py")  # a change in one makes every layer anew
_NVIDIA = re.compile(r"nvidia-(?!ml-py)|cuda-|triton$")
_BLOCK = re.compile(r"^([A-Za-z0-9._-]+)==.*?(?=^[A-Za-z0-9]|\Z)", re.MULTILINE | re.DOTALL)
_PARENT = re.compile(r"^ +#(?: via)? +(\S.*)$", re.MULTILINE)


def read_catalog() -> catalog.Catalog:
    """Read images/catalog.toml."""
    return catalog.parse((IMAGES / "catalog.toml").read_text(encoding="utf-8"))


def lock_of(variant: str) -> Path:
    """Where the hashed lock of a variant is; KeyError where there is no such variant."""
    return ROOT / read_catalog().folder(variant) / "requirements.lock"


def layers(lock: str) -> dict[str, tuple[Pin, ...]]:
    """Sort the pins of a lock into the layers.

    A package belongs to the first layer that cannot do without it: to `torch` what PyTorch needs, its parts made by
    NVIDIA to `nvidia`, to `jupyter` what only images/torch/jupyter.in asks for, to `libraries` the rest. Who asks for a
    package stands in the lock, in the comments that uv writes.
    """
    parents = {block[1]: _parents(block[0]) for block in _BLOCK.finditer(lock)}
    torch = _needed(parents, {name for name in ("torch", "torchvision") if name in parents})
    named = {name for name, asked in parents.items() if any(one.startswith("-r ") for one in asked)}
    jupyter = {name for name in named if any(one.endswith("/jupyter.in") for one in parents[name])}
    libraries = _needed(parents, named - jupyter - torch)
    sorted_pins: dict[str, list[Pin]] = {layer: [] for layer in LAYERS}
    for pin in parse_lock(lock):
        if pin.name in torch:
            layer = "nvidia" if _NVIDIA.match(pin.name) else "torch"
        else:
            layer = "libraries" if pin.name in libraries else "jupyter"
        sorted_pins[layer].append(pin)
    return {layer: tuple(pins) for layer, pins in sorted_pins.items()}


def base_files() -> list[Path]:
    """What the base is made of."""
    return sorted((IMAGES / "base").iterdir())


def recipe_files(variant: str) -> list[Path]:
    """What a variant is made of, besides its wheels, which its lock names."""
    own = [path for path in sorted(TOOLS.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    recipe = [path for path in sorted(RECIPE.iterdir()) if path.is_file() and path.suffix != ".in"]
    return [*recipe, *own, lock_of(variant)]


def hashed(files: Iterable[Path], *texts: str) -> str:
    """A hash of all that an image is made of: names, whether they are programs, contents, and texts."""
    total = hashlib.sha256("\0".join(texts).encode())
    for file in files:
        total.update(f"\0{file.name}\0{file.stat().st_mode & 0o111:o}\0".encode() + file.read_bytes())
    return total.hexdigest()


def make_context(variant: Variant, wheels: Path, folder: Path) -> None:
    """Fill a folder with what images/torch/Dockerfile mounts; the wheels are links where the file system can."""
    lock = lock_of(variant.name)
    build = folder / "build"
    build.mkdir(parents=True)
    for name in SCRIPTS:
        shutil.copy(RECIPE / name, build)
    shutil.copy(Path(sys.executable).with_name("uv"), build)
    for layer, pins in layers(lock.read_text(encoding="utf-8")).items():
        place = folder / layer
        place.mkdir()
        (place / "requirements.txt").write_text("".join(f"{pin.line}\n" for pin in pins), encoding="utf-8")
        for pin in pins:
            wheel = find(pin, wheels)
            if wheel is None:
                raise FileNotFoundError(f"no wheel of {pin.name} {pin.version} in {wheels}")
            _link(wheel, place / wheel.name)
    own = folder / "own"
    shutil.copytree(TOOLS, own, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("install_own.py", "overrides.json"):
        shutil.copy(RECIPE / name, own)
    audit = own / "audit"
    audit.mkdir()
    shutil.copy(lock, audit)
    said = own / "etc/gpucampus/variant.json"
    said.parent.mkdir(parents=True, exist_ok=True)
    said.write_text(json.dumps(_of_itself(variant), indent=1) + "\n", encoding="utf-8")


def _of_itself(variant: Variant) -> Mapping[str, object]:
    """What the programs in the image read of the variant."""
    return {
        "variant": variant.name,
        "torch": variant.torch,
        "cuda": variant.cuda,
        "python": variant.python,
        "min_driver": variant.min_driver,
        "architectures": list(variant.architectures),
    }


def _parents(block: str) -> frozenset[str]:
    """Who asks for a package: other packages, and the .in files, as `-r FILE`."""
    return frozenset(_PARENT.findall(block))


def _needed(parents: Mapping[str, frozenset[str]], roots: set[str]) -> set[str]:
    """The roots and all that they need."""
    needed = set(roots)
    while more := {name for name, asked in parents.items() if name not in needed and not asked.isdisjoint(needed)}:
        needed |= more
    return needed


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
