"""A WebSocket by the public address: with the site's lines it comes through, and a line that is lacking is named."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from tornado.httpserver import HTTPServer
from tornado.web import Application
from tornado.websocket import WebSocketHandler

from spawner.doctor.machine import NotLookedAtError
from spawner.doctor.websocket import Answer, check_websocket, judge_websocket, knock
from spawner.findings import Finding, Status
from spawner.websocket_check import LOST, PATH, WebSocketCheck
from tests.doctor.trees import machine_of, settings_of
from tests.rig.authority import Authority
from tests.rig.waiting import wait_until_sync

OK, WARN, FAIL = Status
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
GOOD = (
    "proxy_http_version 1.1;",
    "proxy_set_header Host $http_host;",
    "proxy_set_header Upgrade $http_upgrade;",
    'proxy_set_header Connection "upgrade";',
)
needs_nginx = pytest.mark.skipif(NGINX is None, reason="Debian's nginx is the web server here")


@contextmanager
def serving(handler: type[WebSocketHandler] = WebSocketCheck) -> Iterator[int]:
    """A hub, as far as this check is concerned, on a loop of its own."""
    loop, ports = asyncio.new_event_loop(), []

    async def listen() -> None:
        server = HTTPServer(Application([(f"/hub{PATH}", handler)]))
        server.listen(0, "127.0.0.1")
        ports.append(next(iter(server._sockets.values())).getsockname()[1])

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(listen())
        loop.run_forever()

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        wait_until_sync(lambda: ports, 10, "the hub listens")
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@contextmanager
def web_server(folder: Path, hub: int, lines: tuple[str, ...], tls: Authority | None = None) -> Iterator[int]:
    """A real nginx before the hub."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    chain = f"ssl_certificate {tls.chain}; ssl_certificate_key {tls.chain};" if tls else ""
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/pid; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}{' ssl http2' if tls else ''}; {chain}\n"
        f"location / {{ proxy_pass http://127.0.0.1:{hub}; {' '.join(lines)} }} }} }}\n"
    )
    command = [str(NGINX), "-c", str(config), "-e", str(folder / "log")]
    process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "--", *command], stderr=subprocess.DEVNULL)
    try:
        wait_until_sync(lambda: answers(port) or process.poll() is not None, 20, "nginx listens")
        assert process.poll() is None, (folder / "log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(20)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def looked(tmp_path: Path, hub: int, public: int, scheme: str = "http") -> Finding:
    settings = settings_of(tmp_path, hub={"public_url": f"{scheme}://localhost:{public}", "proxy_port": hub})
    (finding,) = check_websocket(machine_of(tmp_path, settings=settings))
    return finding


@needs_nginx
@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        pytest.param(GOOD, OK, "reaches the hub", id="as-our-site-has-it"),
        pytest.param(GOOD[:2], FAIL, "drops the headers Upgrade and Connection", id="no-upgrade"),
        pytest.param(GOOD[:3], FAIL, "drops the headers Upgrade and Connection", id="no-connection"),
        pytest.param(("proxy_http_version 1.1;", *GOOD[2:]), FAIL, "changes the header Host", id="no-host"),
        pytest.param(("return 403;",), WARN, "answers 403", id="somebody-else-refuses"),
    ],
)
def test_what_a_web_server_does_with_a_websocket_is_named(tmp_path, lines, status, words):
    with serving() as hub, web_server(tmp_path, hub, lines) as public:
        found = looked(tmp_path, hub, public)
    assert (found.status, words in found.text) == (status, True), found
    assert bool(found.remedy) is (status is not OK)
    if status is FAIL:
        assert "proxy_set_header" in found.remedy


@needs_nginx
def test_behind_tls_and_http2_the_certificate_is_not_this_check_s_business(tmp_path):
    with serving() as hub, web_server(tmp_path, hub, GOOD, Authority(tmp_path / "ca")) as public:
        assert looked(tmp_path, hub, public, "https").status is OK


def test_without_a_web_server_the_proxy_itself_is_the_public_address(tmp_path):
    with serving() as hub:
        assert looked(tmp_path, hub, hub).status is OK


def test_a_hub_that_is_down_or_of_an_older_version_blames_no_web_server(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = free.getsockname()[1]
    with pytest.raises(NotLookedAtError, match="does not answer"):
        looked(tmp_path, nobody, nobody)

    class Older(WebSocketHandler):
        async def get(self, *_: object, **__: object) -> None:
            self.set_status(404)

    with serving(Older) as hub, pytest.raises(NotLookedAtError, match="answers 404"):
        looked(tmp_path, hub, hub)


def test_an_address_that_cannot_be_reached_from_here_is_not_known_to_be_broken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = free.getsockname()[1]
    with serving() as hub:
        found = looked(tmp_path, hub, nobody)
    assert (found.status, "cannot be asked" in found.text) == (WARN, True)


@pytest.mark.parametrize(
    "speak",
    [
        pytest.param(lambda line: line.close(), id="closes"),
        pytest.param(lambda line: line.sendall(b"SSH-2.0-x\r\n\r\n"), id="speaks-another-language"),
        pytest.param(lambda line: line.sendall(b"x" * 100_000), id="never-ends"),
    ],
)
def test_whoever_answers_no_http_is_told_as_that(tmp_path, speak: Callable[[socket.socket], None]):
    def serve(server: socket.socket) -> None:
        line, _ = server.accept()
        line.recv(4096)
        speak(line)
        line.close()

    with serving() as hub, socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=serve, args=(server,), daemon=True).start()
        assert looked(tmp_path, hub, server.getsockname()[1]).status is WARN


def test_a_101_without_the_answer_to_the_key_is_no_websocket(tmp_path):
    def serve(server: socket.socket) -> None:
        line, _ = server.accept()
        line.recv(4096)
        line.sendall(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n")
        line.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=serve, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        assert not knock(urlsplit(f"http://localhost:{port}"), ("127.0.0.1", port), tls=None).accepted


def test_what_is_lost_is_said_by_the_hub_and_by_nobody_else():
    assert judge_websocket(Answer(426, headers={LOST.lower(): "Host"}), "https://h").status is FAIL
    assert judge_websocket(Answer(426), "https://h").status is WARN
