"""Moves the whole test process into a network namespace of its own.

There a private engine may write its iptables rules, bridges and ports as on a real machine, and nothing of it reaches
this one. Only the network is new: `ip netns exec` would also mount a new /sys, which hides the cgroups. What has to
reach the internet all the same (packages) runs in the old namespace, by `outside`.
"""

import ctypes
import os
import subprocess
from pathlib import Path

__all__ = ["enter_network_namespace", "outside"]

CLONE_NEWNET = 0x40000000
_left: list[int] = []


def enter_network_namespace() -> None:
    """Leave the machine's network, once. Only the calling thread moves, so there must be no other."""
    if _left:
        return
    if os.geteuid() != 0:
        raise RuntimeError("Tests on the private engine need root; leave them out with -m 'not docker and not hub'")
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"{threads} threads run already: the network namespace must be made before any is started")
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace could not be made")
    _left.append(before)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def outside(command: list[str]) -> list[str]:
    """Prefix a command so that it runs in the machine's own network."""
    if not _left:
        return command
    return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{_left[0]}", "--", *command]
