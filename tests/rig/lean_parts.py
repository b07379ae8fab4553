"""What a lean hub has in the place of what is outside the question; loaded by its config.d file, inside the hub.

Sign-in is a form that takes any password, and a server is a few lines of Python that answer as far as JupyterHub asks.
`Look` tells what the hub's arbiter believes, which no page and no API says in full.
"""

from typing import Any

from jupyterhub import __version__
from jupyterhub.auth import Authenticator
from jupyterhub.handlers.base import BaseHandler

from spawner import runtime

__all__ = ["GROUP", "SERVER", "Door", "Look"]

GROUP = "members"
SERVER = f"""
import os, socket
from urllib.parse import urlsplit

answer = b"HTTP/1.1 200 OK\\r\\nX-JupyterHub-Version: {__version__}\\r\\nContent-Type: application/json\\r\\n"
answer += b"Content-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{{}}"
listening = socket.create_server(("0.0.0.0", urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port or 8888))
while True:
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(1)
        try:
            connection.recv(65536)
            connection.sendall(answer)
        except OSError:
            pass
"""


class Door(Authenticator):
    """Lets everybody in, with an identifier that never changes, as a provider gives it."""

    async def authenticate(self, handler: object, data: dict[str, str]) -> dict[str, Any]:
        name = data["username"]
        return {"name": name, "groups": [GROUP], "auth_state": {"oauth_user": {"sub": f"sub-of-{name}"}}}


class Look(BaseHandler):
    """The leases as the arbiter has them now, reservations included."""

    async def get(self) -> None:
        shared = await runtime.get()
        arbiter, cache = shared.arbiter, shared.engine.cache
        if cache.fresh and self.get_argument("reap", ""):
            arbiter.reap()  # what the next tick would do
        ledger = arbiter.ledger()
        self.write(
            {
                "leases": {lease.id: {"user": lease.user, "gpus": list(lease.gpus)} for lease in ledger.leases},
                "conflicts": [conflict.gpu for conflict in ledger.conflicts],
                "orphans": [orphan.name for orphan in ledger.orphans],
                "quarantined": dict(arbiter.quarantined()),
                "withheld": sorted(shared.watch.withheld()),
                "fresh": cache.fresh,
            }
        )
