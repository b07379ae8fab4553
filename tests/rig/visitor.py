"""Somebody at the lean hub: with a browser's cookies, and with a token for its REST API; all of it asynchronous."""

from typing import Any

import httpx

__all__ = ["PORT", "URL", "Visitor", "client"]

PORT = 8600
URL = f"http://127.0.0.1:{PORT}"


class Visitor:
    """Somebody at the hub: with a browser's cookies, and with a token for its REST API."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.browser = client(follow_redirects=True)
        self._api = client()
        self._token = ""

    async def close(self) -> None:
        """Leave."""
        await self.browser.aclose()
        await self._api.aclose()

    async def sign_in(self) -> None:
        """Sign in with the form, as a browser does, and ask for a token."""
        self.browser.cookies.clear()
        page = await self.browser.get("/hub/login")
        assert page.status_code == httpx.codes.OK, f"{page.status_code} {page.text[:400]}"
        form = {"username": self.name, "password": "any", "_xsrf": self._xsrf()}
        back = await self.browser.post("/hub/login", params={"next": "/hub/api/"}, data=form)
        assert back.status_code == httpx.codes.OK, f"{self.name}: {back.status_code} {back.text[:400]}"
        made = await self.page("POST", f"/users/{self.name}/tokens", json={})
        assert made.status_code == httpx.codes.CREATED, f"{self.name}: {made.status_code} {made.text[:400]}"
        self._token = made.json()["token"]

    async def page(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Call the hub's API as its pages do: with the cookie, and the token against forged requests."""
        headers = {"X-XSRFToken": self._xsrf(), "Sec-Fetch-Mode": "cors", "Referer": f"{URL}/hub/home"}
        return await self.browser.request(method, f"/hub/api{path}", headers=headers, **options)

    async def api(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Call the hub's REST API with a token and without cookies."""
        headers = {"Authorization": f"token {self._token}"}
        return await self._api.request(method, f"/hub/api{path}", headers=headers, **options)

    async def press_start(self, gpus: int = 1) -> httpx.Response:
        """Ask for a server with one GPU, or with none."""
        choice = {"variant": "probe", "mode": "exclusive", "gpus": gpus} if gpus else {"variant": "probe"}
        return await self.api("POST", f"/users/{self.name}/server", json={"user_options": choice})

    async def press_stop(self, *, by_page: bool = False) -> httpx.Response:
        """Press Stop on the page, or send what the REST API has for it."""
        return await (self.page if by_page else self.api)("DELETE", f"/users/{self.name}/server")

    async def server(self) -> dict[str, Any]:
        """What the hub says of the server; empty where there is none."""
        answer = await self.api("GET", f"/users/{self.name}")
        assert answer.status_code == httpx.codes.OK, f"{answer.status_code} {answer.text[:400]}"
        return dict(answer.json()["servers"].get("", {}))

    async def visit(self) -> int:
        """Ask the server for anything, through the proxy; the status."""
        return (await self.browser.get(f"/user/{self.name}/api")).status_code

    def _xsrf(self) -> str:
        found = [cookie.value for cookie in self.browser.cookies.jar if cookie.name == "_xsrf"]
        return found[-1] or "" if found else ""


def client(**options: Any) -> httpx.AsyncClient:
    """A client without TLS, whose certificates take long to read."""
    return httpx.AsyncClient(base_url=URL, timeout=60, verify=False, **options)
