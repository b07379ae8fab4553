"""A folder of wheels for the images, fetched on this machine and checked against the hashes of a lock.

The build inside Docker then needs no network. The machine's own pip configuration is asked first, so that a mirror or
a local folder is used where there is one; PyTorch's CPU index is asked for what no other source has. PyPI's own wheel
of PyTorch is built for CUDA: the lock's hash keeps it out.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy.steps import tell

__all__ = ["Pin", "WheelError", "fetch", "find", "parse_lock"]

PYTHON = "3.11"  # of Debian 12, which the base image is
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
AT_A_TIME = 4
# Newest first; pip takes none but those named once any is named.
PLATFORMS = tuple(f"manylinux{tag}_x86_64" for tag in (*(f"_2_{minor}" for minor in range(28, 4, -1)), "2014", "1"))
_HASH = r"[ \t]+--hash=sha256:[0-9a-f]{64}[ \t]*\\?\n"
_PIN = re.compile(rf"^([A-Za-z0-9._-]+)==([^\s;\\]+)[^\n]*\n((?:{_HASH})+)", re.MULTILINE)


class WheelError(RuntimeError):
    """Wheels cannot be had; the text is one sentence for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One package of a lock: its exact version, and the hashes of the files that may be installed."""

    name: str
    version: str
    hashes: frozenset[str]

    @property
    def special_build(self) -> bool:
        """Whether the version is one that PyPI cannot hold, such as 2.13.0+cpu."""
        return "+" in self.version

    @property
    def line(self) -> str:
        """The pin as pip reads it."""
        return " ".join((f"{self.name}=={self.version}", *(f"--hash=sha256:{value}" for value in sorted(self.hashes))))


def parse_lock(text: str) -> tuple[Pin, ...]:
    """Read a hashed lock; what has no hash is not a pin and raises WheelError."""
    pins = tuple(
        Pin(name=name, version=version, hashes=frozenset(re.findall(r"[0-9a-f]{64}", hashes)))
        for name, version, hashes in _PIN.findall(text)
    )
    named = re.findall(r"^[A-Za-z0-9][^\n]*", text, re.MULTILINE)
    if len(named) != len(pins):
        raise WheelError(f"The lock has {len(named)} packages, {len(pins)} of them with hashes: run `make lock`.")
    return pins


def find(pin: Pin, folder: Path) -> Path | None:
    """Find the pin's wheel in the folder; a file whose hash is not the lock's does not count."""
    stem = re.sub(r"[-_.]+", "_", pin.name)
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        if re.sub(r"[-_.]+", "_", name).lower() != stem.lower() or version != pin.version:
            continue
        with wheel.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() in pin.hashes:
                return wheel
    return None


def fetch(lock: Path, folder: Path) -> tuple[Path, ...]:
    """Bring every wheel of the lock into the folder and return their paths; WheelError says what is not to be had."""
    pins = parse_lock(lock.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    missing = [pin for pin in pins if find(pin, folder) is None]
    _download_many([pin for pin in missing if not pin.special_build], folder)
    for pin in missing:
        if pin.special_build:
            _download_special(pin, folder)
    return tuple(_checked(pin, folder) for pin in pins)


def _checked(pin: Pin, folder: Path) -> Path:
    wheel = find(pin, folder)
    if wheel is None:
        raise WheelError(
            f"pip brought no wheel of {pin.name} {pin.version} that the lock knows: see pip's configuration."
        )
    return wheel


def _download_many(pins: list[Pin], folder: Path) -> None:
    """Several at a time: most packages are small, and pip waits for an answer or two for each of them."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        parts = [pins[number::AT_A_TIME] for number in range(AT_A_TIME)]
        for done in [pool.submit(_download, part, folder) for part in parts]:
            done.result()


def _download_special(pin: Pin, folder: Path) -> None:
    try:
        _download([pin], folder)
    except WheelError:
        try:
            _download([pin], folder, "--index-url", CPU_INDEX, "--timeout", "5", "--retries", "1")
        except WheelError as error:
            raise WheelError(
                f"There is no wheel of {pin.name} {pin.version} to be had: neither pip's own sources nor {CPU_INDEX} "
                f"have the file that the lock names. Put it into a folder and name that in PIP_FIND_LINKS."
            ) from error


def _download(pins: Iterable[Pin], folder: Path, *options: str) -> None:
    lines = [pin.line for pin in pins]
    if not lines:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(lines) + "\n")
        requirements.flush()
        command = [sys.executable, "-m", "pip", "download", "--progress-bar=off", "--no-deps", "--require-hashes"]
        command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON]
        command += [f"--platform={platform}" for platform in PLATFORMS]
        command += [*options, "--dest", str(folder), "--requirement", requirements.name]
        _run_pip(command)


def _run_pip(command: list[str]) -> None:
    """Run pip and tell which package it is at; WheelError with pip's own last words where it fails."""
    said: deque[str] = deque(maxlen=200)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            said.append(line.strip())
            if line.startswith("Collecting "):
                tell(f"fetching {line.split()[1].partition('==')[0]}")
    if process.returncode:
        errors = [line for line in said if line.startswith("ERROR")] or list(said)
        raise WheelError(f"pip could not fetch wheels for the images: {' '.join(errors[-2:])}")
