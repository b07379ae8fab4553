"""Sign-in at the university's OpenID Connect provider."""

import io
import json
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from jupyterhub.auth import Authenticator
from oauthenticator.generic import GenericOAuthenticator
from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders
from tornado.web import HTTPError
from traitlets import Unicode, default

from spawner import websocket_check
from spawner.audit import AuditLog
from spawner.core.model import Code
from spawner.core.names import check_name
from spawner.messages import sentence

__all__ = ["CampusAuthenticator", "ProviderError", "discover"]

DISCOVERY = "/.well-known/openid-configuration"
TIMEOUT_S = 10
_NEEDED = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")


class ProviderError(RuntimeError):
    """The provider cannot be used; the text is one line for the operator."""


class CampusAuthenticator(GenericOAuthenticator):
    """Any OpenID Connect provider, with a rule for account names that holds for homes, containers and host names."""

    audit_file = Unicode(
        config=True,
        help="""The file that sign-ins are noted in, one JSON object a line.

        The configuration sets it below the state folder; empty, the default, notes them in the hub's log alone, so that
        a command that only reads the configuration writes nothing. Example::

            c.CampusAuthenticator.audit_file = "/var/lib/gpucampus/log/audit.jsonl"
        """,
    )

    @default("http_client")
    def _campus_http_client(self) -> "CampusHTTPClient":
        return CampusHTTPClient(validate_cert=self.validate_server_cert)

    def get_handlers(self, app: object) -> list[tuple[str, type]]:
        """Give the sign-in's pages and the address that tries WebSockets: JupyterHub asks nobody else for handlers."""
        handlers: list[tuple[str, type]] = super().get_handlers(app)
        return [*handlers, (websocket_check.PATH, websocket_check.WebSocketCheck)]

    async def check_allowed(self, username: str, auth_model: dict[str, Any] | None) -> bool:
        """Refuse names that the rule does not allow, in words, then ask the parent about groups."""
        if refusal := check_name(username):
            self._note(username, refusal.code.value)
            raise HTTPError(403, sentence(refusal).replace("%", "%%"))
        allowed = bool(await super().check_allowed(username, auth_model))
        if not allowed:
            self._note(username, Code.ROLE_MISSING.value)
        return allowed

    async def run_post_auth_hook(self, handler: object, auth_model: dict[str, Any]) -> dict[str, Any] | None:
        """Run the configured hook, then note who has signed in; it comes once, after every check."""
        signed_in: dict[str, Any] | None = await super().run_post_auth_hook(handler, auth_model)
        self._note(auth_model["name"], "signed-in" if signed_in else "hook")
        return signed_in

    def validate_username(self, username: str) -> bool:
        """Let every name reach `check_allowed`, whose answer says what is wrong with it; empty ones are nobody's."""
        return bool(username) and (
            check_name(username) is not None or bool(Authenticator.validate_username(self, username))
        )

    def _note(self, username: str, code: str) -> None:
        AuditLog(Path(self.audit_file) if self.audit_file else None).write(
            "sign-in", user=username, code=code, by=username
        )


class CampusHTTPClient:
    """Sends the sign-in's requests by the proxy and with the certificates that the environment names.

    Tornado's own client knows no proxy, and reads the certificates once when it is imported.
    """

    def __init__(self, *, validate_cert: bool = True) -> None:
        self._validate_cert = validate_cert

    async def fetch(self, request: HTTPRequest, *, raise_error: bool = True) -> HTTPResponse:
        """Do what Tornado's client does with a request of the sign-in; HTTPClientError without a good answer."""
        try:
            timeout = aiohttp.ClientTimeout(total=request.request_timeout, sock_connect=request.connect_timeout)
            context = ssl.create_default_context()
            # a request leaves out what is to be as usual
            if (self._validate_cert if request.validate_cert is None else request.validate_cert) is False:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            async with (
                aiohttp.ClientSession(trust_env=True, timeout=timeout) as session,
                session.request(
                    request.method,
                    request.url,
                    headers=dict(request.headers),
                    data=request.body,
                    ssl=context,
                    allow_redirects=request.follow_redirects is not False,
                ) as answer,
            ):
                body = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise HTTPClientError(599, str(error) or "no answer in time") from error
        response = HTTPResponse(request, answer.status, HTTPHeaders(answer.headers), buffer=io.BytesIO(body))
        if raise_error:
            response.rethrow()
        return response


def discover(issuer: str) -> Mapping[str, str]:
    """Read the provider's endpoints from its discovery document; ProviderError says in one line what is wrong."""
    url = issuer.rstrip("/") + DISCOVERY
    try:
        # an opener of its own: the shared one keeps the proxy and the certificates of its first use
        with urllib.request.build_opener().open(url, timeout=TIMEOUT_S) as answer:
            document = json.load(answer)
    except (OSError, ValueError) as error:
        raise ProviderError(f"the identity provider does not answer at {url}: {_why(error)}") from error
    if document.get("issuer", "").rstrip("/") != issuer.rstrip("/"):
        raise ProviderError(
            f"the identity provider at {url} says it is {document.get('issuer')!r}: check sign_in.issuer"
        )
    missing = [key for key in _NEEDED if key not in document]
    if missing:
        raise ProviderError(f"the identity provider at {url} names no {missing[0]}")
    return {key: value for key, value in document.items() if isinstance(value, str)}


def _why(error: Exception) -> str:
    """Say what to do where the provider is behind an authority or a proxy of the campus."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted here ({reason.verify_message}): name your certificate authority's file in "
            "campus.ca_file"
        )
    proxy = urllib.request.getproxies().get("https")
    return f"{error}; asked by the proxy {proxy}" if proxy else str(error)
