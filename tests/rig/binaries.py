"""Where the engine's programs come from: the machine's own, or those of a newer Debian, unpacked and not installed."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.rig.namespace import outside

__all__ = ["engine_version", "find_dockerd", "find_newer_dockerd"]

CDI_SINCE = 26
NEWER = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


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
        _unpack(cache / f"apt-{NEWER}", unpacked)
    assert engine_version(dockerd) >= CDI_SINCE, f"{dockerd} is too old for CDI"
    return dockerd


def _unpack(work: Path, target: Path) -> None:
    """Download docker.io with an apt configuration of our own; /etc/apt and the machine's packages stay as they are."""
    (work / "lists/partial").mkdir(parents=True, exist_ok=True)
    (work / "archives/partial").mkdir(parents=True, exist_ok=True)
    sources = work / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {_mirror()} {NEWER} main\n", encoding="utf-8")
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
    _run([*apt, "update"], work)
    _run([*apt, "download", "docker.io"], work)
    package = max(work.glob("docker.io_*.deb"), key=lambda path: path.stat().st_mtime)
    new = target.with_name(target.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    _run(["dpkg", "-x", str(package), str(new)], work)
    new.rename(target)


def _mirror() -> str:
    """The Debian mirror that this machine uses already, else the public one."""
    wanted = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
        "Label: Debian",
    ]
    found = subprocess.run(wanted, check=False, capture_output=True, text=True, timeout=60).stdout.split()
    return found[0] if found else "http://deb.debian.org/debian"


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(outside(command), check=True, cwd=folder, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", "") or error
        raise AssertionError(
            f"The CDI tests need Docker {CDI_SINCE} or newer, and Debian {NEWER}'s docker.io could not be fetched "
            f"({' '.join(command[:1] + command[-2:])}): {str(output).strip()[-400:]}"
        ) from error
