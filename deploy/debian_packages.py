"""Programs of a newer Debian than this machine's: downloaded with an apt of their own and unpacked, never installed.

apt checks the suite's signature and each package's hash, so a package is what Debian made; /etc/apt and the machine's
own packages stay as they are.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.debian_base import KEYRING
from deploy.outside import MIRROR

__all__ = ["PackageError", "mirror", "unpack"]

LIMIT_S = 300


class PackageError(RuntimeError):
    """Packages cannot be had; the text is for the operator."""


def unpack(
    packages: Sequence[str],
    suite: str,
    target: Path,
    *,
    around: Callable[[list[str]], list[str]] = lambda command: command,
) -> None:
    """Download packages of a suite and unpack them into one new folder; PackageError says why that cannot be.

    Parameters
    ----------
    packages, suite
        What to bring, and from which Debian; what they depend on is not brought.
    target
        The folder to make. Beside it stays what apt keeps.
    around
        Wraps each command, such as one that leaves a network namespace.
    """
    work = target.with_name(f"apt-{suite}")
    (work / "lists/partial").mkdir(parents=True, exist_ok=True)
    (work / "archives/partial").mkdir(parents=True, exist_ok=True)
    sources = work / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n", encoding="utf-8")
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }
    apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
    new = target.with_name(target.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    _run(around([*apt, "update"]), work, suite)
    for package in packages:
        _run(around([*apt, "download", package]), work, suite)
        file = max(work.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)
        _run(["dpkg", "-x", str(file), str(new)], work, suite)
    new.rename(target)


def mirror() -> str:
    """The campus's Debian mirror, else the one that this machine uses already, else the public one."""
    if named := os.environ.get(MIRROR):
        return f"{named.rstrip('/')}/debian"
    wanted = ["Created-By: Packages", "Origin: Debian", "Label: Debian"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted]
    try:
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.split()
    except FileNotFoundError:
        found = []
    return found[0] if found else "http://deb.debian.org/debian"


def _run(command: list[str], folder: Path, suite: str) -> None:
    try:
        subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip()[-400:]
        words = " ".join((*command[:1], *command[-2:]))
        raise PackageError(f"Debian {suite}'s packages could not be fetched ({words}): {said}") from error
