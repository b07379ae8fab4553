"""The Debian below all images where no registry answers: a package list, made into a root file system by mmdebstrap."""

import hashlib
import os
import re
import subprocess
from pathlib import Path

import docker

from deploy import outside
from deploy.buildkit import BuildError
from deploy.image_recipe import IMAGES
from deploy.steps import tell
from spawner.core import catalog

__all__ = ["KEYRING", "archive", "bring"]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def bring(client: docker.DockerClient, base: catalog.Base, cache: Path, labels: dict[str, str]) -> str:
    """Import the package list as mmdebstrap made it; return the image's reference."""
    made = archive(base.suite, cache)
    tell("handing it to the engine")
    repository, tag = "gpucampus/debian", made.stem.rpartition("-")[2]
    lines = [f"LABEL {key}={value}" for key, value in (labels | {"gpucampus.inputs": tag}).items()]
    client.api.import_image(src=str(made), repository=repository, tag=tag, changes=[*lines, 'CMD ["/bin/sh"]'])
    return f"{repository}:{tag}"


def archive(suite: str, cache: Path) -> Path:
    """The root file system that mmdebstrap makes of the package list, made once for each list."""
    packages = _lines("packages.txt")
    name = hashlib.sha256("\0".join((suite, *packages, *_lines("unwanted.txt"))).encode()).hexdigest()[:12]
    made = cache / f"debian-{suite}-{name}.tar"
    if not made.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = made.with_suffix(".partial.tar")
        _mmdebstrap(suite, packages, partial)
        partial.rename(made)
    return made


def _lines(name: str) -> tuple[str, ...]:
    lines = (IMAGES / "base" / name).read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def _mmdebstrap(suite: str, packages: tuple[str, ...], target: Path) -> None:
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    command += ["--aptopt=APT::Install-Recommends false"]
    command += [f"--dpkgopt=path-exclude={path}" for path in _lines("unwanted.txt")]
    command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright", f"--keyring={KEYRING}", suite, str(target)]
    # what a power cut breaks here is made anew, so that dpkg need not wait for the disk; the image does not keep it
    command += ["--dpkgopt=force-unsafe-io"]
    command += ['--customize-hook=sed -i /force-unsafe-io/d "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap']
    mirror, said = outside.debian_mirror(), []
    if mirror.startswith("https:") and (bundle := os.environ.get("SSL_CERT_FILE")):
        # apt reads no variable for it; the image must not keep a path of this machine
        command += [f'--aptopt=Acquire::https::CAInfo "{bundle}"']
        command += ['--customize-hook=sed -i /CAInfo/d "$1"/etc/apt/apt.conf.d/99mmdebstrap']
    command += [f"deb {mirror}/debian {name} main" for name in (suite, f"{suite}-updates")]
    command += [f"deb {mirror}/debian-security {suite}-security main"]
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stderr or ():
                said.append(line)
                if line.startswith("I: "):
                    tell(line.removeprefix("I: ").strip().rstrip("."))
    except FileNotFoundError as error:
        raise BuildError("mmdebstrap is missing: `apt-get install mmdebstrap` brings it.") from error
    if process.returncode:
        raise BuildError(f"mmdebstrap could not make the base image from {mirror}:\n{_tail(''.join(said))}")


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()[-lines:])
