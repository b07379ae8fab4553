"""What an image says of itself (/etc/gpucampus/variant.json), and what of PyTorch is really installed in it.

Standard library only, and PyTorch is not imported: its versions are read from files.
"""

import importlib.metadata
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILE", "Variant", "VariantError", "installed_cuda", "installed_torch", "read"]

FILE = Path("/etc/gpucampus/variant.json")
_CUDA = re.compile(r"^cuda\b[^=\n]*= *'([^']*)'", re.MULTILINE)


class VariantError(RuntimeError):
    """The file cannot be used; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant of the catalog as it was when the image was built; empty texts where it has none of it."""

    name: str
    torch: str = ""
    cuda: str = ""
    python: str = ""
    min_driver: str = ""
    architectures: tuple[int, ...] = ()


def read(path: Path = FILE) -> Variant:
    """Read the file; VariantError says in one line what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        texts = {key: str(found.get(key) or "") for key in ("torch", "cuda", "python", "min_driver")}
        return Variant(name=str(found["variant"]), architectures=tuple(map(int, found["architectures"] or ())), **texts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise VariantError(f"{path} cannot be used ({type(error).__name__}: {error}): build the image anew") from error


def installed_torch() -> str:
    """The version of PyTorch without its local part; empty where it is not installed."""
    try:
        return importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def installed_cuda() -> str:
    """The version of CUDA that PyTorch was built for, read from torch/version.py as text; empty for a CPU build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    match = _CUDA.search(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    return match[1] if match else ""
