"""The operator at a whole hub: a release is a stop, a drain closes at once, the history tells who it was."""

import json
import sqlite3
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from spawner.settings import load
from tests.rig.demo_hub import DemoHub
from tests.rig.waiting import wait_until_sync

pytestmark = [pytest.mark.docker, pytest.mark.hub, pytest.mark.timeout(420)]

ONE_GPU = {"variant": "cpu", "mode": "exclusive", "gpus": 1}


def gpucampus(hub: DemoHub, *words: str, status: int = 0) -> dict[str, Any]:
    """The answer of the operator's command line."""
    return dict(json.loads(hub.command("-m", "spawner.cli", *words, "--json", status=status)))


def audited(hub: DemoHub) -> list[dict[str, Any]]:
    lines = (hub.state / "log/audit.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_figures_are_shown_to_whoever_has_the_scope_and_to_nobody_else(people, demo_hub):
    settings = load(demo_hub.state / "settings.toml")
    url = f"http://{settings.network.gateway}:{settings.hub.hub_port}/hub/metrics"  # as deploy/prometheus has it
    token = (demo_hub.state / "secrets" / "metrics_token").read_text(encoding="ascii")
    scraped = httpx.get(url, headers={"Authorization": f"Bearer {token}"})
    assert scraped.status_code == httpx.codes.OK
    found = {
        sample.name: sample for family in text_string_to_metric_families(scraped.text) for sample in family.samples
    }
    assert found["gpucampus_engine_answers"].value == 1
    assert {"gpucampus_gpus", "gpucampus_leases", "gpucampus_engine_call_duration_seconds_count"} <= found.keys()
    assert "jupyterhub_running_servers" in found, "JupyterHub's own are beside them"
    for name in people:
        assert people[name].browser.get(f"{demo_hub.url}/hub/metrics").status_code == (200 if name == "admin" else 403)
    assert httpx.get(url).status_code == httpx.codes.FORBIDDEN
    users = httpx.get(url.replace("metrics", "api/users"), headers={"Authorization": f"Bearer {token}"})
    assert users.status_code == httpx.codes.FORBIDDEN, "the token reads figures and nothing else"


def test_the_operator_releases_drains_and_is_told_what_was(people, stopped, demo_hub):
    student, teacher = people["student"], people["teacher"]
    student.start(ONE_GPU)
    teacher.start(ONE_GPU)
    (lease,) = [item for item in gpucampus(demo_hub, "leases")["leases"] if item["user"] == "student"]
    (network,) = student.container().attrs["NetworkSettings"]["Networks"].values()
    assert gpucampus(demo_hub, "orphans")["orphans"] == []

    # a release through the hub is a stop: the hub forgets the server, and no end is left to be explained
    (released,) = gpucampus(demo_hub, "release", "student/", "--yes")["released"]
    assert (released["lease"], released["by"], released["gone"]) == (lease["id"], "hub", True)
    wait_until_sync(lambda: not student.server(), 10, "the hub knows that the server has stopped")

    # the history answers for its address, with the reason
    def told() -> dict[str, Any]:
        asked = ("history", "--address", network["IPAddress"], "--at", lease["granted"])
        return next((item for item in gpucampus(demo_hub, *asked)["history"] if item["lease"] == lease["id"]), {})

    wait_until_sync(lambda: told().get("ended"), 20, "the end is in the history")
    assert (told()["user"], told()["code"], told()["gpus"]) == ("student", "stopped", lease["gpus"])
    events = [(line["event"], line["code"]) for line in audited(demo_hub) if line["lease"] == lease["id"]]
    assert events == [("granted", ""), ("started", ""), ("release", "hub"), ("ended", "stopped")]
    assert {line["user"] for line in audited(demo_hub) if line["event"] == "sign-in"} >= {"student", "teacher"}

    # a drained GPU is given to nobody, and its server is stopped; undrained, it is given again
    (held,) = gpucampus(demo_hub, "leases")["leases"]
    (uuid,) = held["gpus"]
    others = [gpu["uuid"] for gpu in gpucampus(demo_hub, "gpus")["node"]["gpus"] if gpu["uuid"] != uuid]
    for other in others:
        gpucampus(demo_hub, "cordon", other)
    try:
        (drained,) = gpucampus(demo_hub, "drain", uuid, "--reason", "fan", "--yes")["released"]
        assert (drained["user"], drained["by"]) == ("teacher", "hub")
        refused = student.press_start(ONE_GPU)
        assert refused.status_code >= 400, refused.text
        gpucampus(demo_hub, "undrain", uuid)
        student.start(ONE_GPU)
        (again,) = gpucampus(demo_hub, "leases")["leases"]
        assert again["gpus"] == [uuid]
    finally:
        for other in others:
            gpucampus(demo_hub, "undrain", other)

    # with the hub down the engine is asked; the hub that comes back finds the server gone and the history closed
    demo_hub.kill()
    (ended,) = gpucampus(demo_hub, "release", again["id"], "--yes")["released"]
    assert ended["by"] == "engine"
    demo_hub.start()
    wait_until_sync(lambda: not student.server(), 30, "the hub has found the server gone")
    wait_until_sync(lambda: gpucampus(demo_hub, "history", "--user", "student")["history"][0]["ended"], 60, "closed")

    # a hub that lost its database knows none of the servers: each is an orphan with a command that removes it
    teacher.start(ONE_GPU)
    demo_hub.end()
    with sqlite3.connect(demo_hub.state / "hub.sqlite") as database:
        database.execute("update spawners set server_id = null, state = '{}'")
    demo_hub.start()
    (orphan,) = gpucampus(demo_hub, "orphans", status=1)["orphans"]
    assert orphan["user"] == "teacher"
    gpucampus(demo_hub, *orphan["remove"].split()[1:], "--yes")
    assert gpucampus(demo_hub, "leases")["leases"] == []
