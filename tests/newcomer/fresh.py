"""A machine as it comes: a minimal root file system of its own, with its own processes and network.

Made by mmdebstrap; entered by chroot in new mount, process and network namespaces. slirp4netns leads its network to
the internet without touching this machine's. How this machine itself reaches packages (apt, pip and npm configuration,
certificates, local folders of wheels) is carried into it, as an administrator would do on a machine of the campus.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.rig.waiting import wait_until_sync

__all__ = ["FreshMachine"]

ROOT = Path(__file__).resolve().parents[2]
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE = "/repository"
CARRIED = ("etc/pip.conf", "root/.config/pip/pip.conf", "root/.npmrc", "usr/local/share/ca-certificates")
CARRIED_VARIABLES = re.compile(r"(PIP_|npm_config_|https?_proxy|no_proxy|.*_CA_|SSL_CERT|GIT_SSL)", re.IGNORECASE)
# orphans end up at process 1, which has to bury them
INIT = "while :; do sleep 3600 & wait $!; done"
PREPARE = """
set -e
mount --make-rprivate /
mount --bind {root} {root}
mount -t proc proc {root}/proc
mount --rbind /sys {root}/sys
mount --rbind /dev {root}/dev
mount -t tmpfs tmpfs {root}/run
mount -t tmpfs tmpfs {root}/tmp
mkdir -p {root}{source}
mount --bind -o ro {repository} {root}{source}
{binds}
ip link set lo up
exec chroot {root} /bin/bash -c '{init}'
"""


class FreshMachine:
    """One machine; `running` brings it up and leaves nothing of it but its files."""

    def __init__(self, suite: str, folder: Path, repository: Path) -> None:
        self.suite = suite
        self.root = folder / suite
        self._repository = repository
        self._outer = 0
        self._groups: set[Path] = set()

    def make(self) -> None:
        """Make its files, with nothing but what every Debian has."""
        self.remove()
        self.root.parent.mkdir(parents=True, exist_ok=True)
        command = ["mmdebstrap", "--variant=minbase", f"--keyring={KEYRING}", self.suite, str(self.root)]
        command += ["--include=iproute2", "http://deb.debian.org/debian"]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        for carried in (*CARRIED, "etc/resolv.conf", *self._apt_configuration()):
            source, target = Path("/") / carried, self.root / carried
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        # a machine like this has no hostname of ours
        (self.root / "etc/hostname").write_text("fresh\n", encoding="utf-8")

    def remove(self) -> None:
        """Remove its files; what is still mounted there stays untouched."""
        if self.root.exists():
            subprocess.run(["rm", "-rf", "--one-file-system", str(self.root)], check=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Bring it up, and end every process of it afterwards."""
        self._groups = _control_groups()
        binds = "\n".join(
            f"mkdir -p {self.root}{path} && mount --bind -o ro {path} {self.root}{path}" for path in _local_folders()
        )
        script = PREPARE.format(root=self.root, source=SOURCE, repository=self._repository, binds=binds, init=INIT)
        outer = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script],
            start_new_session=True,
        )
        network: subprocess.Popen[bytes] | None = None
        try:
            self._outer = wait_until_sync(lambda: self._first(outer.pid), 30, "the machine's first process runs")
            command = ["slirp4netns", "--configure", "--mtu=1400", "--disable-host-loopback", str(self._outer), "tap0"]
            network = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until_sync(self._has_network, 30, "the machine has a network")
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(self._outer, signal.SIGKILL)  # its process 1: all others end with it
            outer.wait(30)
            if network is not None:
                network.terminate()
                network.wait(30)
            self._remove_cgroups()

    def start(self, script: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a shell script in it, in a process group of its own."""
        environment = {name: value for name, value in os.environ.items() if CARRIED_VARIABLES.match(name)}
        environment |= {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        command = [*self.inside("--mount", "--pid"), "--root", "--wd", "bash", "-c", f"cd /root && {script}"]
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, script: str, log: Path, *, limit_s: float = 600) -> None:
        """Run a shell script in it to its good end."""
        with log.open("ab") as output:
            status = self.start(script, output).wait(limit_s)
        assert status == 0, (
            f"{script} ended with {status}:\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}"
        )

    def inside(self, *namespaces: str) -> list[str]:
        """Prefix for a command that shall run in its network, and in more of it."""
        return ["nsenter", f"--target={self._outer}", "--net", *namespaces]

    def _first(self, outer: int) -> int:
        """Process 1 of the machine, as this machine counts; 0 until it is in its own root."""
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text(encoding="ascii").split()
        if not children:
            return 0
        root = os.readlink(f"/proc/{children[0]}/root")  # noqa: PTH115 - a link into another root
        return int(children[0]) if root == str(self.root) else 0

    def _has_network(self) -> bool:
        command = [*self.inside(), "ip", "-4", "addr", "show", "tap0"]
        return "inet " in subprocess.run(command, check=False, capture_output=True, text=True).stdout

    def _apt_configuration(self) -> list[str]:
        return [str(path.relative_to("/")) for path in Path("/etc/apt/apt.conf.d").glob("99*")]

    def _remove_cgroups(self) -> None:
        """Remove the control groups that its engine has left on this machine's kernel; one in use is not removed."""
        for folder in sorted(_control_groups() - self._groups, reverse=True):
            with suppress(OSError):
                folder.rmdir()


def _control_groups() -> set[Path]:
    """The control groups of engines; they are the kernel's, so also another machine's."""
    tops = [*Path("/sys/fs/cgroup").glob("*/docker"), *Path("/sys/fs/cgroup").glob("docker")]
    return {*tops, *(folder for top in tops for folder in top.rglob("*") if folder.is_dir())}


def _local_folders() -> list[str]:
    """Folders of this machine that its pip takes files from."""
    texts = [os.environ.get("PIP_FIND_LINKS", "")]
    for file in ("/etc/pip.conf", "/root/.config/pip/pip.conf"):
        with suppress(OSError):
            texts.append(Path(file).read_text(encoding="utf-8"))
    named = re.findall(r"(?:file://|(?<![\w./:]))(/[\w./-]+)", "\n".join(texts))
    folders = {str(Path(name).parent if name.endswith("/simple") else Path(name)) for name in named}
    return sorted(folder for folder in folders if Path(folder).is_dir())
