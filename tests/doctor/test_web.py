"""Clock, certificate, identity provider and ports."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from spawner.doctor import as_the_hub, web
from spawner.doctor.web import Port, judge_certificate, judge_clock, judge_ports, listening
from spawner.findings import Finding, Status
from tests.doctor.trees import by_name, machine_of, settings_of, statuses
from tests.rig.authority import Authority

OK, WARN, FAIL = Status
NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("synchronised", "skew", "status"),
    [
        pytest.param(True, 0.0, OK, id="good"),
        pytest.param(None, None, OK, id="nobody-can-tell"),
        pytest.param(False, 0.0, WARN, id="nothing-keeps-it"),
        pytest.param(True, 15.0, WARN, id="a-bit-off"),
        pytest.param(True, -500.0, FAIL, id="sign-in-fails"),
    ],
)
def test_the_clock_is_judged_by_who_keeps_it_and_by_the_provider(synchronised, skew, status):
    assert judge_clock(synchronised=synchronised, skew_s=skew).status is status


@contextmanager
def serving(body: bytes, *, date: datetime | None = None, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            when = (date or datetime.now(UTC)).strftime("%a, %d %b %Y %H:%M:%S GMT")
            self.send_header("Date", when)
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the parent's word

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("hours", "status"), [(0, (OK, WARN)), (1, (FAIL,))], ids=["right", "an-hour-off"])
def test_the_skew_is_read_from_the_provider_s_answer(tmp_path, hours, status):
    with serving(b"", date=datetime.now(UTC) + timedelta(hours=hours)) as port:
        sign_in = {"issuer": f"http://127.0.0.1:{port}", "client_id": "x", "client_secret_file": tmp_path / "s"}
        (finding,) = web.clock(machine_of(tmp_path, settings=settings_of(tmp_path, sign_in=sign_in)))
    assert finding.status in status


def test_the_clock_is_looked_at_without_settings(tmp_path):
    assert set(statuses(web.clock(machine_of(tmp_path)))) == {"time"}


def cert(days: int, *names: str) -> dict[str, object]:
    ends = (NOW + timedelta(days=days, hours=1)).strftime("%b %d %H:%M:%S %Y GMT")
    return {"notAfter": ends, "subjectAltName": tuple(("DNS", name) for name in names)}


HUB = ("hub.example.org", "*.hub.example.org")


@pytest.mark.parametrize(
    ("found", "certificate", "names"),
    [
        pytest.param(cert(90, *HUB), OK, OK, id="good"),
        pytest.param(cert(20, *HUB), WARN, OK, id="ends-soon"),
        pytest.param(cert(-1, *HUB), FAIL, OK, id="ended"),
        pytest.param(cert(90, "hub.example.org"), OK, FAIL, id="no-wildcard"),
        pytest.param(cert(90, "*.example.org", "*.hub.example.org"), OK, OK, id="wildcard-above"),
        pytest.param(cert(90, "www.example.org"), OK, FAIL, id="another-name"),
    ],
)
def test_a_certificate_is_judged_by_its_end_and_its_names(found, certificate, names):
    assert statuses(judge_certificate(found, "hub.example.org", NOW)) == {
        "certificate": certificate,
        "certificate names": names,
    }


@pytest.mark.parametrize(
    ("url", "status"),
    [
        pytest.param("http://localhost:8000", OK, id="this-machine"),
        pytest.param("http://127.0.0.1:8000", OK, id="loopback"),
        pytest.param("http://hub.example.org", FAIL, id="in-clear"),
    ],
)
def test_a_hub_without_tls_is_for_this_machine_only(tmp_path, url, status):
    machine = machine_of(tmp_path, settings=settings_of(tmp_path, hub={"public_url": url}))
    assert statuses(web.certificate(machine)) == {"certificate": status}


def test_a_certificate_that_nobody_trusts_is_refused_in_the_browser_s_words(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    pem = tmp_path / "pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:*.localhost"]
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*command, "-days", "2", "-keyout", pem, "-out", tmp_path / "crt", *subject], check=True, capture_output=True
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "crt", pem)
    with serving(b"", tls=tls) as port:
        machine = machine_of(tmp_path, settings=settings_of(tmp_path, hub={"public_url": f"https://localhost:{port}"}))
        found = by_name(web.certificate(machine))
    assert found["certificate"].status is FAIL
    assert "self" in found["certificate"].text


def test_a_certificate_of_the_campus_s_own_authority_is_trusted_as_the_hub_trusts_it(tmp_path):
    ours, others = Authority(tmp_path / "ca", ("localhost", "*.localhost")), Authority(tmp_path / "other")
    with serving(b"", tls=ours.server_context()) as port:

        def looked(ca_file: Path) -> Finding:
            hub = {"public_url": f"https://localhost:{port}"}
            machine = machine_of(tmp_path, settings=settings_of(tmp_path, hub=hub, campus={"ca_file": ca_file}))
            with as_the_hub(machine):
                return by_name(web.certificate(machine))["certificate"]

        before = dict(os.environ)
        assert looked(ours.certificate).status is WARN, "trusted, and ends tomorrow"
        refused = looked(others.certificate)
        assert (refused.status, "campus.ca_file" in refused.remedy) == (FAIL, True)
    assert dict(os.environ) == before
    assert not (tmp_path / "state").exists(), "a look writes nothing"


def test_a_hub_that_does_not_answer_with_tls_is_found(tmp_path):
    with serving(b"") as port:
        machine = machine_of(tmp_path, settings=settings_of(tmp_path, hub={"public_url": f"https://localhost:{port}"}))
        assert "does not answer with TLS" in by_name(web.certificate(machine))["certificate"].text


DOCUMENT = (
    '{"issuer": "http://127.0.0.1:%d", "authorization_endpoint": "a", "token_endpoint": "t", "userinfo_endpoint": "u"}'
)


@pytest.mark.parametrize(
    ("document", "mode", "status"),
    [
        pytest.param(DOCUMENT, 0o600, {"identity provider": OK, "identity provider secret": OK}, id="good"),
        pytest.param(DOCUMENT, 0o644, {"identity provider": OK, "identity provider secret": WARN}, id="open-secret"),
        pytest.param(DOCUMENT, None, {"identity provider": OK, "identity provider secret": FAIL}, id="no-secret"),
        pytest.param("{}", 0o600, {"identity provider": FAIL, "identity provider secret": OK}, id="somebody-else"),
        pytest.param("oops", 0o600, {"identity provider": FAIL, "identity provider secret": OK}, id="no-document"),
    ],
)
def test_the_identity_provider_is_asked_who_it_is(tmp_path, document, mode, status):
    secret: Path = tmp_path / "secret"
    if mode is not None:
        secret.write_text("s3cret")
        secret.chmod(mode)
    holder = [b""]
    with serving_from(holder) as port:
        holder[0] = (document % port if "%d" in document else document).encode()
        sign_in = {"issuer": f"http://127.0.0.1:{port}", "client_id": "x", "client_secret_file": secret}
        assert statuses(web.provider(machine_of(tmp_path, settings=settings_of(tmp_path, sign_in=sign_in)))) == status


@contextmanager
def serving_from(holder: list[bytes]) -> Iterator[int]:
    """Serve what is in the holder when it is asked for, since a document names its own port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(holder[0])

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 01001EAC:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2
   2: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3
   3: 0100007F:9999 0100007F:1F41 01 00000000:00000000 00:00000000 00000000     0        0 4
"""
TCP6 = """\
  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:0947 00000000000000000000000000000000:0000 0A
   1: 0000000000000000FFFF00000100007F:1F41 00000000000000000000000000000000:0000 0A
"""


def test_who_listens_is_read_from_the_kernel(tmp_path):
    machine = machine_of(tmp_path, {"proc/net/tcp": TCP, "proc/net/tcp6": TCP6})
    assert listening(machine) == (
        Port("172.30.0.1", 8081),
        Port("127.0.0.1", 8001),
        Port("0.0.0.0", 8000),
        Port("::", 2375),
        Port("127.0.0.1", 8001),
    )


def test_the_ports_of_a_running_hub_are_judged_from_the_tree(tmp_path):
    machine = machine_of(tmp_path, {"proc/net/tcp": TCP}, settings=settings_of(tmp_path))
    names = ("ports hub API", "ports proxy API", "ports public", "ports engine")
    assert statuses(web.ports(machine)) == dict.fromkeys(names, OK)


WANTED = {"hub API": Port("172.30.0.1", 8081), "proxy API": Port("127.0.0.1", 8001)}


@pytest.mark.parametrize(
    ("found", "check", "status"),
    [
        pytest.param((Port("0.0.0.0", 8081),), "ports hub API", FAIL, id="hub-open-to-all"),
        pytest.param((Port("0.0.0.0", 8001), Port("127.0.0.1", 8001)), "ports proxy API", FAIL, id="proxy-open-to-all"),
        pytest.param((), "ports hub API", WARN, id="hub-down"),
        pytest.param((), "ports public", WARN, id="nothing-to-come-in-by"),
        pytest.param((Port("::", 2375),), "ports engine", FAIL, id="engine-open-to-all"),
        pytest.param((Port("127.0.0.1", 2375),), "ports engine", OK, id="engine-on-loopback"),
    ],
)
def test_a_port_that_is_open_where_it_should_not_be_is_found(found, check, status):
    assert statuses(judge_ports(found, WANTED, 8000))[check] is status
