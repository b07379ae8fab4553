"""What looks at images and signs them: Debian's cosign and OpenSCAP's rules, and Python tools in their own environment.

Nothing of it is installed. Each is brought at its first use into the cache folder and stays there.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.build_images import cache_folder
from deploy.debian_packages import unpack
from deploy.steps import ROOT, tell

__all__ = ["ImageProblem", "cosign", "python_tool", "registry_program", "rules", "said_by"]

LOCK = ROOT / "deploy/audit-tools.lock"
# cosign 3 signs in a form that older registries and clients do not know; older rules have no profile of CIS
COSIGN_SUITE, RULES_SUITE = "trixie", "forky"
COSIGN_MAJOR = "2."


class ImageProblem(RuntimeError):  # noqa: N818 - it is told to a person
    """Something cannot be done with an image; the text is one line for the operator."""


def cosign() -> Path:
    """The program that signs: the one on PATH where it is of version 2, else Debian trixie's."""
    own = shutil.which("cosign")
    if own and COSIGN_MAJOR in _version(Path(own)):
        return Path(own)
    return _unpacked("cosign", COSIGN_SUITE) / "usr/bin/cosign"


def registry_program() -> Path:
    """Debian's registry, for a site that has none and for tests."""
    own = shutil.which("docker-registry")
    return Path(own) if own else _unpacked("docker-registry", COSIGN_SUITE) / "usr/bin/docker-registry"


def rules(debian: str = "12") -> Path:
    """The rules of OpenSCAP's SSG project for a version of Debian, with the profiles of the CIS benchmark."""
    return _unpacked("ssg-debian", RULES_SUITE) / f"usr/share/xml/scap/ssg/content/ssg-debian{debian}-ds.xml"


def python_tool(name: str) -> Path:
    """A program of deploy/audit-tools.lock; the environment is made anew when the lock has changed."""
    mark = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = cache_folder() / f"audit-tools-{mark}"
    if not place.exists():
        tell("bringing the tools")
        uv, new = str(Path(sys.executable).with_name("uv")), place.with_name(f"{place.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        said_by([uv, "venv", "--quiet", "--python", sys.executable, "--relocatable", str(new)])
        python = str(new / "bin/python")
        # uv does not read pip's variable for an index
        index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if os.environ.get("PIP_INDEX_URL") else {}
        said_by([uv, "pip", "install", "--quiet", "--require-hashes", "--python", python, "-r", str(LOCK)], env=index)
        new.rename(place)
    return place / "bin" / name


def said_by(
    command: list[str], *, env: Mapping[str, str] | None = None, limit_s: int = 600, good: tuple[int, ...] = (0,)
) -> str:
    """Run a program and return what it printed; ImageProblem with its last line where it ends in another way."""
    try:
        done = subprocess.run(
            command, env=os.environ | dict(env or {}), capture_output=True, text=True, check=False, timeout=limit_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageProblem(f"{Path(command[0]).name} could not be run: {error}") from error
    if done.returncode not in good:
        last = ((done.stderr or done.stdout).strip().splitlines() or ["it said nothing"])[-1]
        raise ImageProblem(f"{Path(command[0]).name} ended with {done.returncode}: {last}")
    return done.stdout


def _unpacked(package: str, suite: str) -> Path:
    place = cache_folder() / f"{package}-{suite}"
    if not place.exists():
        tell(f"bringing {package} of Debian {suite}")
        place.parent.mkdir(parents=True, exist_ok=True)
        unpack([package], suite, place)
    return place


def _version(program: Path) -> str:
    text = said_by([str(program), "version"], limit_s=30)
    return next((line.split()[-1].lstrip("v") for line in text.splitlines() if line.startswith("GitVersion")), "")
