"""What `make install` puts on a machine, really run: the units' own commands behind nginx with TLS.

systemd does not run in a test. Its part (the secrets that it lends, the environment, no capabilities) is done here from
what the units say; only the user stays root, since Python itself may be where others cannot read. That systemd
understands the units is asked of systemd itself.
"""

import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from tornado.httpclient import HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.netutil import Resolver
from tornado.web import Application
from tornado.websocket import WebSocketHandler, websocket_connect

from deploy import install
from deploy.install import UNITS, Places
from deploy.steps import ROOT
from spawner import settings as settings_file
from spawner.doctor.websocket import knock
from spawner.settings import Settings
from tests.rig.authority import Authority
from tests.rig.demo_hub import DemoHub
from tests.rig.waiting import wait_until_sync

pytestmark = [pytest.mark.docker, pytest.mark.hub]

HOST = "hub.campus.test"
OWN = {
    'public_url = "https://hub.example.org"': f'public_url = "https://{HOST}"',
    'name = "gpucampus"': 'name = "installed"',
    'bridge = "gpucampus0"': 'bridge = "installed0"',
    "172.30.0.0/20": "172.30.240.0/24",
    "hub_port = 8081": "hub_port = 8181",
    "proxy_api_port = 8001": "proxy_api_port = 8101",
    "# proxy_port = 8000": "proxy_port = 8100",
    "https://sso.example.org": "http://127.0.0.1:8010",
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """An installation that runs."""

    places: Places
    settings: Settings
    authority: Authority

    def get(self, address: str, **options: object) -> httpx.Response:
        """Ask the web server for an address of the hub, whose names nobody resolves here."""
        name = httpx.URL(address).host
        with httpx.Client(verify=ssl.create_default_context(cafile=str(self.authority.certificate))) as client:
            return client.get(
                address.replace(f"//{name}", "//127.0.0.1"),
                headers={"Host": name},
                extensions={"sni_hostname": name},
                **options,  # type: ignore[arg-type]
            )


@pytest.fixture(scope="module")
def site(demo_hub: DemoHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Install beside the demo, whose identity provider stands for the university's, and start everything."""
    folder = tmp_path_factory.mktemp("installed")
    places = Places(
        prefix=ROOT,
        etc=folder / "etc",
        state=folder / "state",
        units=folder / "units",
        nginx=folder / "nginx",
        command=folder / "bin/gpucampus",
    )
    install.write_settings(places)
    text = places.settings.read_text(encoding="utf-8").replace("/srv/homes", str(folder / "homes"))
    for old, new in OWN.items():
        assert old in text
        text = text.replace(old, new)
    places.settings.write_text(text, encoding="utf-8")
    (folder / "homes").mkdir()
    (places.etc / "client_secret").write_text("not asked for here")
    authority = Authority(folder / "ca", names=(HOST, f"*.{HOST}"))
    for name in ("fullchain.pem", "privkey.pem"):
        shutil.copy(authority.chain, places.etc / "tls" / name)
    settings = settings_file.load(places.settings)
    install.make_secrets(settings)
    install.write_units(places, settings)
    install.write_command(places)
    install.write_site(places, settings)
    assert list(install.missing(places, settings)) == []
    made = Site(places=places, settings=settings, authority=authority)
    try:
        with ExitStack() as running:
            proxy, hub, culler = (run_unit(places.units / name, folder, demo_hub) for name in UNITS)
            running.enter_context(web_server(places, folder))
            running.enter_context(proxy)
            running.enter_context(hub)
            wait_until_sync(lambda: answers(made), 120, "the hub answers")
            running.enter_context(culler)  # the first look is the one that the test waits for, the next a minute later
            yield made
    finally:
        client = demo_hub.engine.client
        for probe in client.containers.list(all=True, filters={"label": "gpucampus.hub=installed"}):
            wait_until_sync(partial(gone, probe), 30, "a container of the self-check is gone")
        for network in client.networks.list(names=["installed"]):
            network.remove()


def gone(container: Container) -> bool:
    """Remove what a hub left that ended within its self-check; the engine may be at that already."""
    try:
        container.remove(force=True)
    except NotFound:
        return True
    except APIError as error:
        if error.status_code != httpx.codes.CONFLICT:
            raise
    return False


def answers(site: Site) -> bool:
    try:
        return site.get(f"https://{HOST}/hub/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


@contextmanager
def run_unit(unit: Path, folder: Path, demo: DemoHub) -> Iterator[None]:
    """Do what systemd does with a unit, as far as a test can."""
    said = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE))
    env = dict(word.split("=", 1) for word in said["Environment"].split())
    env |= {key: demo.environment[key] for key in ("DOCKER_HOST", "PYTHONPATH") if key in demo.environment}
    env |= {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["setpriv", "--pdeathsig", "TERM"]
    if "LoadCredential" in said:
        name, _, source = said["LoadCredential"].partition(":")
        lent = folder / "lent" / unit.stem
        lent.mkdir(parents=True)
        (lent / name).write_text(Path(source).read_text(encoding="ascii"), encoding="ascii")
        env["CREDENTIALS_DIRECTORY"] = str(lent)
    if said.get("DynamicUser") == "yes":
        words += ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    command = shlex.split(said["ExecStart"].replace(f"{ROOT}/.venv/bin/python", sys.executable))
    with (folder / f"{unit.stem}.log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "--", *command], cwd=said["WorkingDirectory"], env=env, stdout=log, stderr=log
        )
    try:
        yield
        assert process.poll() is None, f"{unit.stem} ended:\n{(folder / f'{unit.stem}.log').read_text()[-3000:]}"
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def web_server(places: Places, folder: Path) -> Iterator[None]:
    """Run nginx with nothing but the site."""
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n"
        f"events {{}}\nhttp {{ access_log off; include {places.nginx}/sites-enabled/*; }}\n"
    )
    command = ["nginx", "-c", str(config), "-e", str(folder / "nginx.log")]
    tested = subprocess.run([*command, "-t"], check=False, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stderr
    process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "--", *command])
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def test_systemd_understands_the_units_and_finds_little_to_blame(site):
    units = [str(site.places.units / name) for name in UNITS]
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], check=False, capture_output=True, text=True
    )
    ours = [line for line in said.stderr.splitlines() if "gpucampus" in line and "docker.service" not in line]
    assert ours == []
    for unit, most in zip(units, (1.5, 4.3, 1.5), strict=True):
        asked = ["systemd-analyze", "security", "--offline=true", f"--threshold={most * 10:.0f}", unit]
        judged = subprocess.run(asked, check=False, capture_output=True, text=True)
        assert judged.returncode == 0, judged.stdout.splitlines()[-1]


def test_the_sign_in_page_answers_over_tls_and_leads_to_the_provider_and_back(site):
    page = site.get(f"https://{HOST}/hub/login")
    assert page.status_code == 200
    assert "University account" in page.text
    assert page.headers["strict-transport-security"].startswith("max-age=")
    sent = site.get(f"https://{HOST}/hub/oauth_login")
    assert sent.headers["location"].startswith("http://127.0.0.1:8010/")
    assert httpx.URL(sent.headers["location"]).params["redirect_uri"] == f"https://{HOST}/hub/oauth_callback"
    assert all("secure" in cookie.lower() for cookie in sent.headers.get_list("set-cookie"))


def test_plain_http_is_sent_to_tls(site):
    answer = site.get(f"http://ann.{HOST}/lab?x=1")
    assert (answer.status_code, answer.headers["location"]) == (308, f"https://ann.{HOST}/lab?x=1")


class Here(Resolver):
    """Every name is this machine."""

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        return [(socket.AF_INET, ("127.0.0.1", port))]


class Echo(WebSocketHandler):
    """A server's kernel, as far as the way to it is concerned."""

    def on_message(self, message: str | bytes) -> None:
        protocol = self.request.headers["X-Forwarded-Proto"].partition(",")[0]  # the proxy adds its own view behind
        self.write_message(f"{protocol} {self.request.host} {message!s}")


async def test_a_websocket_reaches_the_server_of_the_person_whose_host_name_it_is(site):
    server = HTTPServer(Application([("/user/ann/echo", Echo)]))
    server.listen(0, "127.0.0.1")
    port = next(iter(server._sockets.values())).getsockname()[1]
    token = (site.settings.state / "secrets/proxy_token").read_text().strip()
    api = f"http://127.0.0.1:{site.settings.hub.proxy_api_port}/api/routes/ann.{HOST}/user/ann"
    async with httpx.AsyncClient(headers={"Authorization": f"token {token}"}) as client:
        (await client.post(api, json={"target": f"http://127.0.0.1:{port}"})).raise_for_status()
        try:
            request = HTTPRequest(
                f"wss://ann.{HOST}/user/ann/echo", ca_certs=str(site.authority.certificate), connect_timeout=10
            )
            connection = await websocket_connect(request, resolver=Here())
            await connection.write_message("hello")
            assert await connection.read_message() == f"https ann.{HOST} hello"
            connection.close()
        finally:
            await client.delete(api)
            server.stop()


def test_the_doctor_s_websocket_reaches_the_hub_itself_through_web_server_and_proxy(site):
    url = urlsplit(site.settings.hub.public_url)
    assert knock(url, ("127.0.0.1", site.settings.hub.listen_port), tls=None).accepted
    tls = ssl.create_default_context(cafile=str(site.authority.certificate))
    assert knock(url, ("127.0.0.1", 443), tls=tls).accepted


def test_the_idle_culler_asks_the_hub_with_its_own_token(site):
    log = site.places.units.parent / "gpucampus-hub.log"
    wait_until_sync(lambda: re.search(r"200 GET /hub/api/users\S* \(idle-culler@", log.read_text()), 30, "it has asked")


def test_the_operators_command_reads_the_settings_of_the_services(site):
    ours = str(Path(sys.executable).with_name("gpucampus"))
    command = site.places.command.read_text().replace(f"{ROOT}/.venv/bin/gpucampus", ours)
    env = {key: value for key, value in os.environ.items() if key != "GPUCAMPUS_SETTINGS"}
    asked = ["sh", "-c", command, "gpucampus", "settings", "check"]
    said = subprocess.run(asked, check=False, capture_output=True, text=True, cwd="/", env=env)
    assert said.returncode == 0, said.stderr
    assert str(site.places.settings) in said.stdout


def test_nobody_else_reads_the_databases_and_secrets(site):
    assert (site.settings.state / "hub.sqlite").exists()
    assert site.settings.state.stat().st_mode & 0o777 == 0o700
