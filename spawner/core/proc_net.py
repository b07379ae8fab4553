"""Who listens, as the kernel's tables /proc/net/tcp and tcp6 have it."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Listener", "listening"]

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket. The address 0.0.0.0 and :: is all of them; `inode` tells whose socket it is."""

    address: str
    port: int
    inode: str


def listening(table: str) -> Iterator[Listener]:
    """Read the sockets that listen from the text of one table."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTEN:
            address, port = fields[1].split(":")
            yield Listener(_address(address), int(port, 16), fields[9] if len(fields) > 9 else "")


def _address(text: str) -> str:
    """An address as the kernel prints it: words of 32 bits, each in the machine's own order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
