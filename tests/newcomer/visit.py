"""Sign in at a running demo, start a server with a GPU, look at it, stop it: run in the network of a fresh machine.

python -m tests.newcomer.visit ADDRESS ACCOUNT PASSWORD OPTIONS
"""

import json
import sys
from types import SimpleNamespace
from typing import cast

from tests.hub.person import sign_in
from tests.rig.demo_hub import DemoHub


def main(address: str, account: str, password: str, options: str) -> None:
    """Do what a newcomer does first."""
    hub = cast("DemoHub", SimpleNamespace(url=address, describe=lambda: "see the hub's log"))
    person, page = sign_in(hub, account, password)
    assert person is not None, f"{page.status_code} {page.url}"
    person.start(json.loads(options))
    answer = person.lab()
    assert answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}"
    assert "started" in answer.json()
    person.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
