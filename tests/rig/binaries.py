"""Where the engine's programs come from: the machine's own, or those of a newer Debian, unpacked and not installed."""

import re
import shutil
import subprocess
from pathlib import Path

from deploy.debian_packages import PackageError, unpack
from tests.rig.namespace import outside

__all__ = ["engine_version", "find_dockerd", "find_newer_dockerd"]

CDI_SINCE = 26
NEWER = "trixie"


def find_dockerd() -> Path:
    """The machine's own engine."""
    found = shutil.which("dockerd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    assert found, "dockerd is not on this machine: run apt-get install docker.io iptables"
    return Path(found)


def engine_version(dockerd: Path) -> int:
    """The major version of an engine's program."""
    text = subprocess.run([str(dockerd), "--version"], check=True, capture_output=True, text=True, timeout=30).stdout
    match = re.search(r"version (\d+)\.", text)
    assert match, f"{dockerd} --version says {text!r}"
    return int(match[1])


def find_newer_dockerd(cache: Path) -> Path:
    """An engine that knows CDI: the machine's own when it is new enough, else Debian trixie's below `cache`.

    Only dockerd is taken: containerd and runc stay the machine's, since the newer runc needs a newer glibc.
    """
    own = find_dockerd()
    if engine_version(own) >= CDI_SINCE:
        return own
    unpacked = cache / f"docker-{NEWER}"
    dockerd = unpacked / "usr/sbin/dockerd"
    if not dockerd.exists():
        try:
            unpack(["docker.io"], NEWER, unpacked, around=outside)
        except PackageError as error:
            raise AssertionError(f"The CDI tests need Docker {CDI_SINCE} or newer. {error}") from error
    assert engine_version(dockerd) >= CDI_SINCE, f"{dockerd} is too old for CDI"
    return dockerd
