"""`gpucampus-kernel`: an environment of one's own, offered as a kernel.

It sees the image's packages behind its own, so that neither PyTorch nor ipykernel is installed once more; what is
installed in it goes before them. With `--bare` it sees nothing of the image.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpucampus_tools.own_packages import see_image

__all__ = ["KernelError", "main", "make_environment", "register"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OF_THE_IMAGE = "python3"


class KernelError(Exception):
    """There is no such kernel to be had; the text is for the person at the terminal."""


def make_environment(place: Path, *, bare: bool, image: Path) -> None:
    """Make a virtual environment, or take the one that is there, and see that a kernel can run in it."""
    if not (place / "pyvenv.cfg").exists():
        if place.exists() and any(place.iterdir()):
            raise KernelError(f"{place} is no virtual environment and not empty. Choose another folder with --folder.")
        subprocess.run([sys.executable, "-I", "-m", "venv", str(place)], check=True)
    if not bare:
        see_image(place, image, before=False)
    found = subprocess.run([place / "bin/python", "-I", "-c", "import ipykernel"], capture_output=True, check=False)
    if found.returncode != 0:
        raise KernelError(f"{place} has no ipykernel. Run `{place}/bin/pip install ipykernel`, then this again.")


def register(name: str, place: Path, environment: Mapping[str, str]) -> Path:
    """Offer an environment as a kernel; return the file that says so."""
    given, home = environment.get("JUPYTER_DATA_DIR"), environment.get("HOME") or str(Path.home())
    data = Path(given) if given else Path(home, ".local/share/jupyter")
    kernel = data / "kernels" / name.lower() / "kernel.json"
    kernel.parent.mkdir(parents=True, exist_ok=True)
    said = {
        "argv": [str(place / "bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": name,
        "language": "python",
        "env": {"PATH": f"{place}/bin:${{PATH}}", "VIRTUAL_ENV": str(place)},
        "metadata": {"debugger": True},
    }
    kernel.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return kernel


def main(arguments: Sequence[str] | None = None) -> int:
    """Make an environment and register it."""
    parser = argparse.ArgumentParser(prog="gpucampus-kernel", description="Make an environment of your own a kernel.")
    parser.add_argument("name", help="the kernel's name")
    parser.add_argument("--folder", type=Path, help="its folder, made unless it is there (default: ~/envs/NAME)")
    parser.add_argument("--bare", action="store_true", help="without the packages of the image")
    chosen = parser.parse_args(arguments)
    name = str(chosen.name)
    if not _NAME.fullmatch(name) or name.lower() == _OF_THE_IMAGE:
        parser.error(f"{name!r} cannot be a kernel's name: letters, digits, '.', '-' and '_', and not python3")
    place = (chosen.folder or Path.home() / "envs" / name).absolute()
    try:
        make_environment(place, bare=chosen.bare, image=Path(sysconfig.get_path("purelib")))
        kernel = register(name, place, os.environ)
    except (KernelError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"{place} cannot be made: python -m venv ended with {error.returncode}.", file=sys.stderr)
        return 1
    print(f"The kernel {name} runs in {place}. Reload JupyterLab's page to see it in the launcher.")
    print(f"Install with `{place}/bin/pip install`, or with %pip in one of its notebooks.")
    print(f"It goes with `jupyter kernelspec remove {kernel.parent.name}`; remove the folder, too.")
    return 0
