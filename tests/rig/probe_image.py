"""A small Debian with Python and NVML's bindings, for tests that look at a container from inside."""

import hashlib
import io
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tests.rig.engine import PrivateEngine
from tests.rig.namespace import outside

__all__ = ["load_probe_image", "with_environment"]

SUITE = "bookworm"
PACKAGES = ("python3",)
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
NAME = "gpucampus-test/probe"


def load_probe_image(engine: PrivateEngine, cache: Path) -> str:
    """Import the image into an engine unless it is there; the image's id."""
    bindings = find_spec("pynvml")
    assert bindings is not None, "nvidia-ml-py is not installed: run make test, which brings it"
    assert bindings.origin is not None
    module = Path(bindings.origin)
    recipe = hashlib.sha256("\0".join((SUITE, *PACKAGES)).encode() + module.read_bytes()).hexdigest()[:12]
    tarball = cache / f"probe-{recipe}.tar"
    if not tarball.exists():
        _make(tarball, module)
    return engine.load_image(f"{NAME}:{recipe}", tarball, ["LABEL gpucampus.project=gpucampus"])


def with_environment(engine: PrivateEngine, image: str, entry: str) -> str:
    """Build an image on top of another that sets an environment variable, as NVIDIA's own images do; its id."""
    dockerfile = io.BytesIO(f"FROM {image}\nENV {entry}\n".encode())
    built, _ = engine.client.images.build(fileobj=dockerfile, rm=True)
    return str(built.id)


def _make(tarball: Path, module: Path) -> None:
    assert shutil.which("mmdebstrap"), "mmdebstrap is not on this machine: run apt-get install mmdebstrap"
    tarball.parent.mkdir(parents=True, exist_ok=True)
    partial = tarball.with_suffix(".partial.tar")
    command = [
        *("mmdebstrap", "--quiet", "--variant=essential", f"--include={','.join(PACKAGES)}", f"--keyring={KEYRING}"),
        *("--aptopt=APT::Install-Recommends false", "--dpkgopt=path-exclude=/usr/share/doc/*"),
        *(
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            f"--customize-hook=upload {module} /usr/lib/python3/dist-packages/pynvml.py",
        ),
        *(SUITE, str(partial), f"deb {MIRROR} {SUITE} main"),
    ]
    done = subprocess.run(outside(command), check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"mmdebstrap could not make the image for the tests:\n{done.stderr[-2000:]}"
    partial.rename(tarball)
