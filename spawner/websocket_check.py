"""One address of the hub that accepts WebSockets and does nothing else, so that the way to it can be tried.

Kernels and terminals are WebSockets. A web server that does not hand on the headers which ask for one shows every page
and connects no kernel. The hub has no other WebSocket, and a server of somebody's is not there to be tried. Who asks
learns whether the headers of that very request arrived, so nobody has to sign in.
"""

from typing import Any
from urllib.parse import urlsplit

from tornado.httputil import HTTPHeaders
from tornado.websocket import WebSocketHandler

__all__ = ["LOST", "PATH", "WebSocketCheck", "lost"]

PATH = "/gpucampus/websocket"  # below the hub's prefix
LOST = "X-GPUCampus-Lost"


def lost(headers: HTTPHeaders) -> list[str]:
    """Name the headers that did not arrive as a browser sends them.

    Upgrade and Connection are named together: the hub's own proxy drops the one where the other is missing.
    """
    connection = {word.strip().lower() for word in headers.get("Connection", "").split(",")}
    found = []
    if headers.get("Upgrade", "").lower() != "websocket" or "upgrade" not in connection:
        found += ["Upgrade", "Connection"]
    origin = headers.get("Origin", "")
    if origin and urlsplit(origin).netloc.lower() != headers.get("Host", "").lower():
        found.append("Host")
    return found


class WebSocketCheck(WebSocketHandler):
    """Accepts a WebSocket and closes it, or says which headers were lost on the way."""

    def check_origin(self, origin: str) -> bool:  # noqa: ARG002 - the parent's argument
        """Let everybody in: nothing is said in the WebSocket, and `lost` has compared the names."""
        return True

    async def get(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the parent's signature
        """Accept, or answer 426 with the names of what was lost."""
        if missing := lost(self.request.headers):
            self.set_status(426, "Upgrade Required")
            self.set_header(LOST, ", ".join(missing))
            self.finish(f"lost on the way: {', '.join(missing)}\n")
            return
        await super().get(*args, **kwargs)

    def open(self, *_args: str, **_kwargs: str) -> None:
        """Close at once: that it could be opened is all that is asked."""
        self.close()
