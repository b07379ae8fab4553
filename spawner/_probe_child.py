"""Runs inside the self-check's containers, with the image's own Python and nothing else.

`listen PORT` takes connections until its life ends; `knock JSON` tries addresses and prints what came of each.
"""

import errno
import json
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

LIFE_S = 60  # nobody may be left to remove it
KNOCK_S = 2.0


def listen(port: int) -> None:
    """Take connections over IPv4 and IPv6, and close them."""
    signal.alarm(LIFE_S)
    doors = selectors.DefaultSelector()
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - to be knocked at
        with suppress(OSError):
            door = socket.socket(family)
            if family == socket.AF_INET6:
                door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            door.bind((address, port))
            door.listen()
            doors.register(door, selectors.EVENT_READ, lambda door=door: door.accept()[0])
    while True:
        for key, _ in doors.select():
            key.data().close()


def own_ipv6() -> list[str]:
    """Give the addresses of this container's interfaces but for loopback."""
    with suppress(OSError):
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()]
        return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[-1] != "lo"]
    return []


def knock(address: str, port: int, path: str) -> str:
    """Try one address: `open`, `http 200` where a path is asked for, or why not."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    scope = next((index for index, name in socket.if_nameindex() if name != "lo"), 0)
    place = (address, port, 0, scope if address.startswith("fe80:") else 0) if ":" in address else (address, port)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as caller:
            caller.settimeout(KNOCK_S)
            caller.connect(place)
            if not path:
                return "open"
            caller.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}:{port}\r\n\r\n".encode())
            words = caller.recv(64).split()
            return f"http {words[1].decode()}" if len(words) > 1 and words[0].startswith(b"HTTP/") else "no http"
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def main() -> None:
    """Do what the command line says."""
    if sys.argv[1] == "listen":
        listen(int(sys.argv[2]))
        return
    targets = json.loads(sys.argv[2])
    answers = ["timeout"] * len(targets)

    def ask(number: int) -> None:
        answers[number] = knock(*targets[number])

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * KNOCK_S)
    sys.stdout.write(json.dumps({"answers": answers, "ipv6": own_ipv6()}) + "\n")


if __name__ == "__main__":
    main()
