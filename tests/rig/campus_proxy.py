"""An HTTP proxy as campuses have one, and an HTTPS server to be reached by it; both note who asked for what."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.rig.authority import Authority

__all__ = ["CampusProxy", "Provider"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that does not trust us breaks off."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class CampusProxy(_Server):
    """Lets CONNECT through to any name; every name leads to one port of this machine, so a name proves the way."""

    def __init__(self, leads_to: int) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.leads_to = leads_to
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Tunnel(BaseHTTPRequestHandler):
    server: CampusProxy

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        with socket.create_connection(("127.0.0.1", self.server.leads_to), timeout=5) as there:
            self.send_response(200, "Connection established")
            self.end_headers()
            back = threading.Thread(target=_copy, args=(there, self.connection), daemon=True)
            back.start()
            _copy(self.connection, there)
            back.join(5)

    def do_HEAD(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class Provider(_Server):
    """As much of an identity provider as discovery and the two calls of a sign-in ask for, in HTTPS."""

    def __init__(self, authority: Authority, issuer: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.socket = authority.server_context().wrap_socket(self.socket, server_side=True)
        self.issuer = issuer or f"https://localhost:{self.port}"
        self.asked: list[tuple[str, str]] = []


class _Answers(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/.well-known/openid-configuration":
            names = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")
            self._answer({"issuer": self.server.issuer} | {name: f"{self.server.issuer}/{name}" for name in names})
        elif path == "/userinfo_endpoint":
            self._answer({"sub": "1", "bearer": self.headers.get("Authorization", "")})
        else:
            self._answer({"error": "not_found"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer({"access_token": "t", "body": body})

    def _answer(self, document: dict[str, str], status: int = 200) -> None:
        self.server.asked.append((self.command, self.path))
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
