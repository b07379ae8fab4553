"""Somebody at a browser, without the browser: signs in at the provider and uses the hub's pages and API."""

from http.cookies import SimpleCookie
from typing import Any

import httpx

from tests.rig.demo_hub import DemoHub
from tests.rig.waiting import wait_until_sync

__all__ = ["Person", "sign_in"]

START_LIMIT_S = 120


class _Localhost(httpx.BaseTransport):
    """Sends `*.localhost` to this machine and keeps its cookies, as browsers do and Python's clients do not.

    Python's cookie jar takes no cookie for the domain `localhost`; here a cookie belongs to a port and a path.
    """

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.cookies: dict[tuple[int | None, str, str], str] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        port, path = request.url.port, request.url.path
        sent = [
            f"{name}={value}" for (of, at, name), value in self.cookies.items() if of == port and path.startswith(at)
        ]
        headers = httpx.Headers(request.headers)  # the Host header keeps the name
        headers["Cookie"] = "; ".join(sent)
        here = httpx.Request(
            method=request.method,
            url=request.url.copy_with(host="127.0.0.1"),
            headers=headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        answer = self._inner.handle_request(here)
        for line in answer.headers.get_list("set-cookie"):
            for name, morsel in SimpleCookie(line).items():
                self.cookies[port, morsel["path"] or "/", name] = morsel.value
        return answer

    def xsrf(self) -> str:
        """The hub's token against forged requests."""
        return next(value for (_, path, name), value in self.cookies.items() if (path, name) == ("/hub/", "_xsrf"))


class Person:
    """One signed-in account."""

    def __init__(self, hub: DemoHub, name: str, browser: httpx.Client, token: str) -> None:
        self.hub = hub
        self.name = name
        self.browser = browser
        self._auth = {"Authorization": f"token {token}"}

    def api(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Call the hub's API with this person's token."""
        return self.browser.request(method, f"{self.hub.url}/hub/api{path}", headers=self._auth, **options)

    def press_start(self, options: object = None, *, server: str = "") -> httpx.Response:
        """Ask for a server; `options` is whatever JSON one likes to send."""
        path = f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"
        return self.api("POST", path, json={"user_options": {} if options is None else options})

    def server(self, server: str = "") -> dict[str, Any]:
        """What the hub says of a server; empty where there is none."""
        return dict(self.api("GET", f"/users/{self.name}").json()["servers"].get(server, {}))

    def wait_ready(self, server: str = "") -> None:
        """Wait until the server runs; fails at once where the start has failed."""

        def ready() -> bool:
            model = self.server(server)
            assert model, f"the start of {self.name}/{server} failed:\n{self.hub.describe()}"
            return bool(model["ready"])

        wait_until_sync(ready, START_LIMIT_S, f"{self.name}/{server} is ready")

    def start(self, options: object = None, *, server: str = "") -> None:
        """Start a server and wait for it."""
        answer = self.press_start(options, server=server)
        assert answer.status_code in (201, 202), f"{answer.status_code} {answer.text}"
        self.wait_ready(server)

    def stop(self, server: str = "") -> None:
        """Stop a server, if it runs, and wait for its end."""
        path = f"/users/{self.name}/servers/{server}" if server else f"/users/{self.name}/server"
        self.api("DELETE", path)
        wait_until_sync(lambda: not self.server(server), 60, f"{self.name}/{server} has stopped")

    def lab(self, path: str = "api/status") -> httpx.Response:
        """Ask the running server through the proxy, at this person's own host name."""
        where = self.hub.url.replace("//", f"//{self.name}.")
        return self.browser.get(f"{where}/user/{self.name}/{path}", headers=self._auth)

    def container(self, server: str = "") -> Any:
        """The engine's container of a running server."""
        labels = [f"gpucampus.user={self.name}", f"gpucampus.server={server}"]
        (found,) = self.hub.engine.client.containers.list(all=True, filters={"label": labels})
        return found

    def run(self, *command: str, server: str = "") -> str:
        """Run a command in the server's container as its user; what it printed."""
        status, output = self.container(server).exec_run(list(command))
        assert status == 0, f"{command} ended with {status}: {output.decode()}"
        return str(output.decode())


def sign_in(hub: DemoHub, login: str, password: str) -> tuple[Person | None, httpx.Response]:
    """Sign in as a browser does; the last page, and the person if the hub let them in."""
    transport = _Localhost()
    browser = httpx.Client(transport=transport, follow_redirects=True, timeout=30)
    page = browser.get(f"{hub.url}/hub/oauth_login", params={"next": "/hub/home"})
    assert "password" in page.text, f"no sign-in page but {page.status_code} {page.url}: {page.text[:400]}"
    back = browser.post(page.url, data={"login": login, "password": password})
    if back.status_code != httpx.codes.OK or "/hub/" not in str(back.url):
        return None, back
    headers = {"X-XSRFToken": transport.xsrf(), "Sec-Fetch-Mode": "cors", "Referer": f"{hub.url}/hub/home"}
    made = browser.post(f"{hub.url}/hub/api/users/{login}/tokens", headers=headers, json={})
    assert made.status_code == httpx.codes.CREATED, f"{login}: {made.status_code} {made.text}"
    return Person(hub, login, browser, made.json()["token"]), back
