"""A person's own packages: one environment for each variant in the home, behind the packages of the image.

The image cannot be written, and each start brings it anew, so `pip install` needs a place that stays. That place is a
virtual environment in the home, for pip alone: pip can upgrade and remove there what it has installed, and sees the
image's packages. The image's pip runs itself in it (`python =` in the image's pip.conf names `gpucampus-python`, the
program below); environments that people make themselves have their own pip, which knows nothing of this.

Kernels and terminals have the folder's name in GPUCAMPUS_PACKAGES, and zz_gpucampus.pth adds it to their sys.path,
behind the image's. The server has no such variable: whatever stands in a home, it cannot keep a server from starting.
"""

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpucampus_tools.visible import VARIABLE

__all__ = ["constraints", "folder", "main", "prepare", "see_image"]

_DESCRIPTION = Path("/etc/gpucampus/variant.json")
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_SITE_PACKAGES = Path("lib", _PYTHON, "site-packages")
_DISTRIBUTION = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")


def folder(environment: Mapping[str, str], description: Path = _DESCRIPTION) -> Path:
    """Where this person's own packages for this variant are."""
    if given := environment.get(VARIABLE):
        return Path(given)
    home = environment.get("HOME") or str(Path.home())
    variant = json.loads(description.read_text(encoding="utf-8"))["variant"]
    return Path(home, ".local/share/gpucampus", variant)


def prepare(place: Path, *, python: Path, image: Path) -> None:
    """Make the environment, or complete it; what is right already is not written again, so a full disk does not matter.

    Parameters
    ----------
    place
        The environment's folder.
    python
        The interpreter below the image's environment.
    image
        The folder of the image's packages.
    """
    _write(
        place / "pyvenv.cfg",
        # with the system's packages, since pip takes --user only then; it goes to the same folder
        f"home = {python.parent}\ninclude-system-site-packages = true\n",
    )
    see_image(place, image, before=True)
    _write(place / "constraints.txt", constraints(path.name for path in image.iterdir()))
    interpreter = place / "bin/python"
    if not interpreter.exists():
        interpreter.unlink(missing_ok=True)  # a link to a Python that has gone
        interpreter.parent.mkdir(parents=True, exist_ok=True)
        interpreter.symlink_to(python)


def see_image(environment: Path, image: Path, *, before: bool) -> None:
    """Let an environment see the image's packages, before its own packages or behind them."""
    place, line = environment / _SITE_PACKAGES / "00-image-packages.pth", f"{image}\n"
    if before:  # python has just put the environment's own folder last
        line = f"import sys; {str(image)!r} in sys.path or sys.path.insert(-1, {str(image)!r})\n"
    _write(place, line)


def constraints(names: Iterable[str]) -> str:
    """Hold pip to the versions of the image, from the names of its folder: another version would never be used."""
    found = [match for name in sorted(names) if (match := _DISTRIBUTION.fullmatch(name))]
    return "".join(f"{match['name']}=={match['version']}\n" for match in found)


def main() -> None:
    """Become the Python of that environment, with the arguments given: what the image's pip calls.

    Who may write to the image's own environment, as the build of a child image, installs there.
    """
    own, image = Path(sys.prefix, "bin/python"), Path(sysconfig.get_path("purelib"))
    arguments, environment = sys.argv[1:], dict(os.environ)
    if os.access(image, os.W_OK):
        os.execve(own, [str(own), *arguments], environment)  # noqa: S606 - no shell is wanted
    place = folder(environment)
    try:
        prepare(place, python=Path(sys.base_prefix, "bin", _PYTHON), image=image)
    except OSError as error:
        sys.exit(f"Your own packages cannot be kept in {place}: {error.strerror}. Make room or repair that folder.")
    limits = (environment.get("PIP_CONSTRAINT", ""), str(place / "constraints.txt"))
    environment |= {"PYTHONUSERBASE": str(place), "PIP_CONSTRAINT": " ".join(filter(None, limits))}
    python = place / "bin/python"
    os.execve(python, [str(python), *arguments], environment)  # noqa: S606 - no shell is wanted


def _write(path: Path, text: str) -> None:
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
