"""A hub that lost its databases, secrets and settings comes back from a backup with everybody's server."""

import json
import shutil
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.rig.demo_hub import DemoHub

pytestmark = [pytest.mark.docker, pytest.mark.hub, pytest.mark.timeout(300)]

ONE_GPU = {"variant": "cpu", "mode": "exclusive", "gpus": 1}


def gpucampus(hub: DemoHub, *words: str, status: int = 0) -> dict[str, Any]:
    return dict(json.loads(hub.command("-m", "spawner.cli", *words, "--json", status=status)))


def routes(hub: DemoHub) -> dict[str, str]:
    """What the proxy sends where, without the times it notes."""
    token = (hub.state / "secrets/proxy_token").read_text(encoding="utf-8").strip()
    answer = httpx.get("http://127.0.0.1:8001/api/routes", headers={"Authorization": f"token {token}"})
    return {path: route["target"] for path, route in answer.json().items()}


def test_a_hub_that_lost_its_state_is_put_back_and_nobodys_server_notices(people, stopped, demo_hub, tmp_path):
    student, file = people["student"], tmp_path / "hub.tar"
    student.start(ONE_GPU)
    (lease,) = gpucampus(demo_hub, "leases")["leases"]
    container, before = student.container().id, routes(demo_hub)
    persons = persons_of(demo_hub)

    # what --check says of a hub and images that were made from this checkout, while the hub runs
    checks = {item["check"]: item for item in gpucampus(demo_hub, "upgrade", "--check")["checks"]}
    assert {item["status"] for name, item in checks.items() if name != "image plain"} == {"ok"}, checks
    assert "is current, with JupyterHub 6.1" in checks["image cpu"]["text"]

    gpucampus(demo_hub, "backup", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    refused = gpucampus(demo_hub, "restore", str(file), "--yes", status=1)["findings"]
    assert "end it first" in refused[0]

    demo_hub.kill()
    for path in demo_hub.state.glob("*.sqlite*"):
        path.unlink()
    shutil.rmtree(demo_hub.state / "secrets")
    (demo_hub.state / "settings.toml").unlink()

    gpucampus(demo_hub, "restore", str(file), "--yes")
    demo_hub.start()
    assert student.container().id == container
    assert gpucampus(demo_hub, "leases")["leases"] == [lease]
    assert routes(demo_hub) == before
    assert student.server()["ready"], "the token that was given out before is taken, and the server is known"
    assert student.lab().status_code == httpx.codes.OK
    # the person's browser, too: signed in still (cookie secret), and let in to the server anew (the hub's database)
    home = student.browser.get(f"{demo_hub.url}/hub/home")
    assert (home.status_code, home.url.path) == (httpx.codes.OK, "/hub/home")
    assert persons_of(demo_hub) == persons
    for left in demo_hub.state.glob("before-restore-*"):
        shutil.rmtree(left)


def persons_of(hub: DemoHub) -> list[Any]:
    """Who has which uid and home."""
    with closing(sqlite3.connect(f"file:{hub.state / 'records.sqlite'}?mode=ro", uri=True)) as database:
        return database.execute("select sub, uid, hub_name, home from person order by sub").fetchall()
