"""Small wheels, made here: packages that a test installs without a network."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["make_wheel"]


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, str], *, script: str = "") -> Path:
    """Write a wheel of pure Python; `script` is an entry point, as `name = module:function`."""
    about = f"{name}-{version}.dist-info"
    contents = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{about}/entry_points.txt": f"[console_scripts]\n{script}\n"} if script else {}),
    }
    contents[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{about}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    return wheel
