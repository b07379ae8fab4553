"""Whether a WebSocket reaches the hub by its public address, as each kernel and terminal must.

The same request goes to the hub's own proxy first. Only where that one accepts, the public address is judged: whatever
differs then is the doing of what stands before the proxy.
"""

import base64
import hashlib
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage, parse_headers
from io import BytesIO
from urllib.parse import SplitResult, urlsplit

from spawner.doctor.machine import Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding
from spawner.websocket_check import LOST, PATH

__all__ = ["Answer", "check_websocket", "judge_websocket", "knock"]

CHECK = "websocket"
LIMIT_S = 8
_LONGEST = 64 << 10
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_EXAMPLE = "deploy/nginx/gpucampus.conf has the lines"
_UPGRADE = (
    'nginx: proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; '
    f"({_EXAMPLE}), then systemctl reload nginx"
)
_HOST = f"nginx: proxy_set_header Host $http_host; ({_EXAMPLE}), then systemctl reload nginx"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered: the status, and the headers with their names in lower case."""

    status: int
    accepted: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


def check_websocket(machine: Machine) -> Iterator[Finding]:
    """Say whether a WebSocket comes through."""
    hub = machine.set.hub
    url = urlsplit(hub.public_url)
    try:
        here = knock(url, ("127.0.0.1", hub.listen_port), tls=None)
    except (OSError, HTTPException) as error:
        raise NotLookedAtError(f"the hub's proxy does not answer on 127.0.0.1:{hub.listen_port}", str(error)) from error
    if not here.accepted:
        raise NotLookedAtError(f"the hub itself answers {here.status} and no WebSocket: is it up, and of this version?")
    secure = url.scheme == "https"
    port = url.port or (443 if secure else 80)
    try:
        there = knock(url, (url.hostname or "", port), tls=_any_certificate() if secure else None)
    except (OSError, HTTPException) as error:
        text = f"{hub.public_url} cannot be asked from this machine ({error}), so whether kernels connect is not known"
        yield warn(CHECK, text, "look at the checks certificate and ports; some networks let nobody in from inside")
        return
    yield judge_websocket(there, hub.public_url)


def judge_websocket(answer: Answer, url: str) -> Finding:
    """Judge what the public address answers where the hub itself accepts."""
    if answer.accepted:
        return ok(CHECK, f"reaches the hub by {url}")
    missing = answer.headers.get(LOST.lower(), "")
    if "Upgrade" in missing:
        text = f"the web server at {url} drops the headers Upgrade and Connection, so no kernel or terminal connects"
        return fail(CHECK, text, _UPGRADE)
    if "Host" in missing:
        text = f"the web server at {url} changes the header Host, so servers refuse the WebSockets of their pages"
        return fail(CHECK, text, _HOST)
    text = f"{url} answers {answer.status}, and the hub itself accepts: what stands before it lets no WebSocket through"
    return warn(CHECK, text, f"compare it with deploy/nginx/gpucampus.conf: Upgrade, Connection, Host; curl -i {url}")


def knock(url: SplitResult, address: tuple[str, int], *, tls: ssl.SSLContext | None) -> Answer:
    """Ask for a WebSocket as a browser does; OSError or HTTPException where no answer comes."""
    key = base64.b64encode(os.urandom(16))
    request = (
        f"GET /hub{PATH} HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Origin: {url.scheme}://{url.netloc}\r\nSec-WebSocket-Key: {key.decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with ExitStack() as opened:
        line: socket.socket = opened.enter_context(socket.create_connection(address, LIMIT_S))
        if tls is not None:
            line = opened.enter_context(tls.wrap_socket(line, server_hostname=url.hostname))
        line.sendall(request.encode("ascii"))
        status, headers = _answer(line)
    expected = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()).decode()
    return Answer(status, status == 101 and headers.get("Sec-WebSocket-Accept") == expected, _lower(headers))


def _answer(line: socket.socket) -> tuple[int, HTTPMessage]:
    """Read a status line and headers; what follows does not matter."""
    said = b""
    while b"\r\n\r\n" not in said:
        piece = line.recv(4096)
        if not piece:
            raise ConnectionResetError("the connection was closed without an answer")
        said += piece
        if len(said) > _LONGEST:
            raise HTTPException("the answer has no end")
    first, _, rest = said.partition(b"\r\n")
    words = first.decode("latin-1").split()
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise HTTPException("the answer is not HTTP")
    return int(words[1]), parse_headers(BytesIO(rest))


def _lower(headers: HTTPMessage) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _any_certificate() -> ssl.SSLContext:
    """Whether the certificate is good is a check of its own; nothing secret is sent here."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
