"""Which program listens on a port, by /proc alone."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spawner.core import proc_net

__all__ = ["Holder", "holders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that listens; pid 0 where the kernel does not let us see whose the socket is."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})" if self.pid else "a program of another container or of the kernel"


def holders(port: int, root: Path = Path("/")) -> list[Holder]:
    """Give the processes that listen on a TCP port at any address; `root` stands in for the machine's files."""
    inodes = set(_inodes(port, root))
    if not inodes:
        return []
    found: dict[str, Holder] = {}
    for process in sorted((root / "proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        for inode in inodes & _sockets(process):
            found.setdefault(inode, Holder(pid=int(process.name), name=_name(process)))
    seen = {inode: found.get(inode, Holder(pid=0, name="")) for inode in inodes}
    return sorted(set(seen.values()), key=lambda holder: holder.pid)


def _inodes(port: int, root: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):  # a kernel without IPv6
            text = (root / "proc/net" / table).read_text(encoding="ascii")
            yield from (one.inode for one in proc_net.listening(text) if one.port == port)


def _sockets(process: Path) -> set[str]:
    found = set()
    try:
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                target = str(link.readlink())
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    except OSError:  # it has ended
        return found
    return found


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "a program that has just ended"
