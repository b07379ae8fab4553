"""The idle culler's rule: a server ends after the idle time of its owner's role.

The spawner keeps that time in the server's state.
"""

from datetime import timedelta
from typing import Any


def idle_long_enough(*, inactive: timedelta | None, inactive_limit: int, server: dict[str, Any]) -> bool:
    """Whether a server has been idle for as long as its role allows; the shortest role's time where none is known."""
    limit = (server.get("state") or {}).get("idle_s", inactive_limit)
    return inactive is not None and inactive.total_seconds() >= limit


c = get_config()  # noqa: F821 - from traitlets
c.IdleCuller.cull_arbiter_hook = idle_long_enough
