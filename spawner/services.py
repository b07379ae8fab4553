"""What asks the hub on its own account: the idle culler, the operator's command line and Prometheus.

Each has a token of its own, made at the first start, and no scope that it does not need.
"""

import sys
from typing import Any

from spawner import hub_api
from spawner.settings import ROOT, Settings

__all__ = ["services"]


def services(settings: Settings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Give JupyterHub's services, and the roles that say what each may do."""
    scopes = {
        "idle-culler": [*hub_api.SCOPES, "read:users:activity"],
        "operator": list(hub_api.SCOPES),
        "prometheus": list(hub_api.METRICS_SCOPES),
    }
    tokens = {"idle-culler": "idle_culler_token", "operator": hub_api.OPERATOR, "prometheus": "metrics_token"}
    made: list[dict[str, Any]] = [
        {"name": name, "api_token": hub_api.ensure_token(settings.state, token)} for name, token in tokens.items()
    ]
    if settings.hub.run_culler:
        program = [sys.executable, "-m", "deploy.programs", "culler"]
        # a killed hub leaves none behind
        made[0] |= {"command": ["setpriv", "--pdeathsig", "TERM", "--", *program], "cwd": str(ROOT)}
    return made, [{"name": name, "scopes": allowed, "services": [name]} for name, allowed in scopes.items()]
