"""JupyterHub's own REST API, as the command line asks it; blocking, with time limits.

A stop that goes through the hub is a stop like the person's own: the hub forgets the server, its page says so, and
nothing looks like a death. There is no API of ours beside it. The operator's token is a file that only the owner of the
state folder reads; the hub's configuration gives it just the scopes that the command line needs.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spawner.private_files import make_secret

__all__ = [
    "METRICS_SCOPES",
    "OPERATOR",
    "SCOPES",
    "HubAPI",
    "HubServer",
    "HubUnknown",
    "ensure_token",
    "operator_token",
]

OPERATOR = "operator_token"
METRICS_SCOPES = ("read:metrics",)
SCOPES = ("list:users", "read:servers", "admin:server_state", "delete:servers")
TIMEOUT_S = 5
STOP_TIMEOUT_S = 60  # the hub answers a stop when it is done or after its slow_stop_timeout
_PAGE = 200  # the most that JupyterHub gives at once
_PAGED = "application/jupyterhub-pagination+json"
_HEX = frozenset("0123456789abcdef")


class HubUnknown(Exception):  # noqa: N818 - a state of knowledge
    """The hub did not answer what was asked; the text is one line for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubServer:
    """A server that the hub knows and that is not stopped. `lease` is empty while the hub has not learned it."""

    user: str
    server: str
    lease: str = ""


class HubAPI:
    """The API of one hub."""

    def __init__(self, gateway: str, port: int, state: Path) -> None:
        self.url = f"http://{gateway}:{port}/hub"
        self._state = state
        # no proxy of the environment: the hub is on this machine
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answers(self) -> bool:
        """Whether the hub is up."""
        try:
            with self._opener.open(f"{self.url}/health", timeout=TIMEOUT_S) as response:
                return bool(response.status == HTTPStatus.OK)
        except (OSError, ValueError):
            return False

    def servers(self) -> tuple[HubServer, ...]:
        """List every server that the hub knows as starting, running or stopping."""
        return tuple(
            HubServer(
                user=user["name"], server=server["name"], lease=str((server.get("state") or {}).get("lease_id", ""))
            )
            for user in self._users()
            for server in user.get("servers", {}).values()
            if not server["stopped"] or server["pending"]
        )

    def stop(self, user: str, server: str) -> bool:
        """Have the hub stop a server; False where the hub has no such person or server."""
        path = f"/users/{quote(user, safe='')}/"
        path += f"servers/{quote(server, safe='')}" if server else "server"
        return self._ask("DELETE", path, STOP_TIMEOUT_S, absent=True) is not None

    def _users(self) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            # state=active is what the database says; servers of people without one would only make the pages longer
            answer = self._ask("GET", f"/users?state=active&limit={_PAGE}&offset={offset}", TIMEOUT_S) or {}
            yield from answer["items"]
            following = answer["_pagination"]["next"]
            if not following:
                return
            offset = int(following["offset"])

    def _ask(self, method: str, path: str, timeout_s: float, *, absent: bool = False) -> dict[str, Any] | None:
        """Call the API; None where it says 404 and that is an answer (`absent`), {} where it says nothing."""
        headers = {"Authorization": f"token {operator_token(self._state)}", "Accept": _PAGED}
        request = urllib.request.Request(f"{self.url}/api{path}", method=method, headers=headers)  # noqa: S310 - http
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                text = response.read()
                return dict(json.loads(text)) if text else {}
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.NOT_FOUND and absent:
                    return None
                raise HubUnknown(_refused(error.code, method, path, self._state)) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise HubUnknown(f"the hub does not answer on {self.url}: {reason}") from error


def operator_token(state: Path) -> str:
    """Read the operator's token; HubUnknown says what to do where that cannot be."""
    return _token(state / "secrets" / OPERATOR)


def ensure_token(state: Path, name: str) -> str:
    """Give a token of the hub's own services, made at the first start; for the hub's configuration."""
    path = state / "secrets" / name
    make_secret(path)
    try:
        return _token(path)
    except HubUnknown as error:
        raise SystemExit(f"gpucampus: {error}") from error


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError as error:
        raise HubUnknown(f"{path} is not there: the hub makes it when it starts; restart the hub") from error
    except (OSError, UnicodeDecodeError) as error:
        raise HubUnknown(f"{path} cannot be read: run the command as the owner of the state folder") from error
    if len(token) < 32 or not _HEX.issuperset(token):
        raise HubUnknown(f"{path} holds no token: remove it and restart the hub")
    return token


def _refused(status: int, method: str, path: str, state: Path) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        file = state / "secrets" / OPERATOR
        return f"the hub does not take the token of {file}: restart the hub, which reads it when it starts"
    return f"the hub answered {status} to {method} {path.partition('?')[0]}; its log says why"
