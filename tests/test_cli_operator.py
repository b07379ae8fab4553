"""The operator ends servers and closes GPUs with the hub up or down, and each mistake is one sentence."""

import asyncio
import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from typer.testing import CliRunner, Result

from deploy.demo.gpus.make import SimulatedGPUs
from spawner import cli, nvml
from spawner.cli import ending
from spawner.core.ledger import Container, from_labels
from spawner.docker_api import EngineRefuses, EngineUnknown
from spawner.hub_api import OPERATOR, SCOPES, HubAPI, HubUnknown, ensure_token
from spawner.records import Records
from spawner.settings import GPUSettings
from tests.test_cli import container
from tests.test_settings import LEAST

NODE = socket.gethostname()


class Engine:
    """What the engine has; `trouble` by call is raised instead of an answer."""

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.calls: list[tuple[str, str]] = []
        self.trouble: dict[str, Exception] = {}
        self.listings = 0
        self._lock = Lock()

    def listing(self) -> list[Container]:
        self.listings += 1
        self._fail("list")
        return list(self.containers)

    def stop(self, container_id: str, grace_s: int) -> None:
        assert grace_s == 10
        self.calls.append(("stop", container_id))
        self._fail("stop")

    def remove(self, container_id: str) -> None:
        self.calls.append(("remove", container_id))
        self._fail("remove")
        self.drop(container_id)

    def drop(self, container_id: str) -> None:
        with self._lock:
            self.containers = [item for item in self.containers if item.id != container_id]

    def _fail(self, call: str) -> None:
        if error := self.trouble.get(call):
            raise error


class StandInHub:
    """Answers as JupyterHub 6.1 does, as far as the command line asks; a server is a (user, server, lease)."""

    def __init__(self, engine: Engine, state: Path) -> None:
        self.engine = engine
        self.token = ensure_token(state, OPERATOR)
        self.servers: list[tuple[str, str, str]] = []
        self.idle_people = 0
        self.asked: list[str] = []
        self.stops_really = True
        self.broken = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            do_DELETE = do_GET  # noqa: N815 - the parent's word

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        if url.path == "/hub/health":
            return self._say(request, 200)
        self.asked.append(f"{request.command} {url.path}")
        if request.headers["Authorization"] != f"token {self.token}":
            return self._say(request, 403, {"message": "Missing or invalid credentials."})
        if self.broken:
            return self._say(request, 500, {"message": "Internal Server Error"})
        if request.command == "GET":
            return self._say(request, 200, self._page({key: value[0] for key, value in parse_qs(url.query).items()}))
        parts = [unquote(part) for part in url.path.split("/")]
        user, server = parts[4], parts[6] if len(parts) > 6 else ""
        known = [row for row in self.servers if row[:2] == (user, server)]
        if not known:
            return self._say(request, 404, {"message": "no such server"})
        if self.stops_really:
            self.servers.remove(known[0])
            self.engine.drop(known[0][2])
        return self._say(request, 202)

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        assert query["state"] == "active"
        offset, limit = int(query["offset"]), int(query["limit"])
        people: dict[str, dict[str, Any]] = {f"idle{number}": {} for number in range(self.idle_people)}
        for user, server, lease in self.servers:
            state = {"lease_id": lease} if lease else {}
            model = {"name": server, "stopped": False, "pending": None, "state": state}
            people.setdefault(user, {})[server] = model
        items = [{"name": name, "servers": servers} for name, servers in people.items()]
        more = {"offset": offset + limit} if offset + limit < len(items) else None
        return {"items": items[offset : offset + limit], "_pagination": {"next": more}}

    @staticmethod
    def _say(request: BaseHTTPRequestHandler, status: int, body: object = None) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr("spawner.docker_api.list_containers_once", made.listing)
    monkeypatch.setattr("spawner.docker_api.stop_once", made.stop)
    monkeypatch.setattr("spawner.docker_api.remove_once", made.remove)
    monkeypatch.setattr(ending, "HUB_MARGIN_S", 0.3 - 10)
    monkeypatch.setattr(ending, "BURIAL_S", 0.3)
    monkeypatch.setattr(ending, "PAUSE_S", 0.01)
    return made


@pytest.fixture(scope="module")
def inventory(plain_gpus: SimulatedGPUs) -> nvml.Inventory:
    """What the library says, asked once: each question is a process of its own."""
    found = asyncio.run(nvml.ask(GPUSettings(library=plain_gpus.library, device_dir=plain_gpus.device_dir), NODE))
    assert isinstance(found, nvml.Inventory)
    return found


@pytest.fixture
def settings(
    plain_gpus: SimulatedGPUs, inventory: nvml.Inventory, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Settings of a hub that is down."""

    async def ask(settings: GPUSettings, node_name: str) -> nvml.Inventory | nvml.InventoryFailure:
        if settings.library != plain_gpus.library:
            return nvml.InventoryFailure(reason="the library cannot be loaded")
        return inventory

    monkeypatch.setattr("spawner.nvml.ask", ask)
    path = tmp_path / "settings.toml"
    gpus = f"library = '{plain_gpus.library}'\ndevice_dir = '{plain_gpus.device_dir}'\nsimulated = true\n"
    network = "[hub]\nhub_port = 9\n[network]\nsubnet = '127.0.0.0/24'\n"
    path.write_text(f"state = '{state}'\n{LEAST}\n[gpus]\n{gpus}{network}")
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(path))
    monkeypatch.setenv("SUDO_USER", "olga")
    return path


@pytest.fixture
def hub(settings: Path, engine: Engine, state: Path) -> Iterator[StandInHub]:
    made = StandInHub(engine, state)
    settings.write_text(settings.read_text().replace("hub_port = 9\n", f"hub_port = {made.http.server_port}\n"))
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def gpu(plain_gpus: SimulatedGPUs) -> str:
    return plain_gpus.device("0").uuid


def run(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(words), prog_name="gpucampus", input=typed)


def answer(*words: str, code: int = 0) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout))


def audited(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / "log" / "audit.jsonl").read_text().splitlines()]


def closed(state: Path) -> dict[str, str]:
    records = Records.open(f"sqlite:///{state / 'records.sqlite'}")
    found: dict[str, str] = {item.target: item.state for item in records.cordons()}
    records.close()
    return found


# -- release ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["lease1", "anna/train", "c-lease1"], ids=["lease", "server", "container"])
def test_a_server_of_a_hub_that_is_up_is_stopped_by_the_hub(settings, engine, hub, state, gpu, what):
    engine.containers.append(container(gpu))
    hub.servers.append(("anna", "train", "lease1"))
    found = answer("release", what, "--yes")
    assert [(one["lease"], one["by"], one["gone"]) for one in found["released"]] == [("lease1", "hub", True)]
    assert hub.asked[-1] == "DELETE /hub/api/users/anna/servers/train"
    assert engine.calls == [], "the engine was not touched behind the hub's back"
    (line,) = audited(state)
    assert (line["event"], line["user"], line["server"], line["lease"], line["gpus"], line["code"], line["by"]) == (
        "release",
        "anna",
        "train",
        "lease1",
        [gpu],
        "hub",
        "olga",
    )


def test_the_default_server_has_an_address_of_its_own(settings, engine, hub, gpu):
    engine.containers.append(container(gpu, **{"gpucampus.server": ""}))
    hub.servers.append(("anna", "", "lease1"))
    assert answer("release", "anna/", "--yes")["released"][0]["by"] == "hub"
    assert hub.asked[-1] == "DELETE /hub/api/users/anna/server"


def test_names_of_servers_cannot_lead_the_hub_elsewhere(settings, engine, hub, gpu):
    engine.containers.append(container(gpu, **{"gpucampus.server": "../../ben?x#é"}))
    hub.servers.append(("anna", "../../ben?x#é", "lease1"))
    assert answer("release", "lease1", "--yes")["released"][0]["by"] == "hub"
    assert hub.asked[-1] == "DELETE /hub/api/users/anna/servers/..%2F..%2Fben%3Fx%23%C3%A9"


def test_with_the_hub_down_the_engine_stops_and_removes(settings, engine, state, gpu):
    engine.containers.append(container(gpu))
    assert answer("release", "lease1", "--yes")["released"][0]["by"] == "engine"
    assert engine.calls == [("stop", "lease1"), ("remove", "lease1")]
    assert [(line["event"], line["code"], line["by"]) for line in audited(state)] == [
        ("release", "engine", "olga"),
        ("ended", "stopped", "olga"),
    ]


def test_with_the_hub_down_the_history_is_closed_by_the_command(settings, engine, past, gpu):
    engine.containers.append(container(gpu, "two"))
    answer("release", "two", "--yes")
    (two,) = [item for item in answer("history")["history"] if item["lease"] == "two"]
    assert two["code"] == "stopped"
    assert two["ended"]


def test_a_history_that_cannot_be_closed_is_a_finding_and_the_server_ends(settings, engine, state, gpu):
    engine.containers.append(container(gpu))
    state.mkdir()
    (state / "records.sqlite").write_bytes(b"this is no database " * 100)
    found = answer("release", "lease1", "--yes", code=1)
    assert found["released"][0]["gone"] is True
    assert "is not in the history" in found["findings"][0]


@pytest.mark.parametrize("known", [[], [("anna", "train", "another")]], ids=["no-server", "another-lease"])
def test_what_the_hub_does_not_know_is_ended_by_the_engine(settings, engine, hub, gpu, known):
    engine.containers.append(container(gpu))
    hub.servers += known
    assert answer("release", "lease1", "--yes")["released"][0]["by"] == "engine"
    assert not any(call.startswith("DELETE") for call in hub.asked)
    assert hub.servers == known, "another server of the same name goes on"


def test_a_hub_that_is_just_starting_a_server_is_asked_too(settings, engine, hub, gpu):
    engine.containers.append(container(gpu))
    hub.servers.append(("anna", "train", ""))
    hub.stops_really = False
    found = answer("release", "lease1", "--yes", code=1)
    assert hub.asked[-1].startswith("DELETE")
    assert "not gone yet" in found["findings"][0]
    assert engine.calls == []


def test_a_hub_in_trouble_does_not_save_a_server_but_is_a_finding(settings, engine, hub, gpu):
    engine.containers.append(container(gpu))
    hub.broken = True
    found = answer("release", "lease1", "--yes", code=1)
    assert found["released"][0]["gone"] is True
    assert "ended by the engine and not as a stop, since the hub answered 500" in found["findings"][0]


def test_a_hub_with_another_token_is_a_finding_with_its_remedy(settings, engine, hub, gpu):
    engine.containers.append(container(gpu))
    hub.token = "another"
    assert "restart the hub" in answer("release", "lease1", "--yes", code=1)["findings"][0]


def test_the_hub_that_is_up_reads_the_end_before_the_container_is_removed(settings, engine, hub, gpu, monkeypatch):
    engine.containers.append(container(gpu))
    monkeypatch.setattr("spawner.docker_api.stop_once", lambda container_id, _: engine.drop(container_id))
    assert answer("release", "lease1", "--yes")["released"][0]["gone"] is True
    assert engine.calls == [], "the hub has removed it, not this command"


def test_an_engine_that_hangs_leaves_the_lease_and_says_so(settings, engine, gpu):
    engine.containers.append(container(gpu))
    engine.trouble["stop"] = EngineUnknown("stop did not answer")
    found = answer("release", "lease1", "--yes", code=1)
    assert found["released"][0]["gone"] is False
    assert "its lease stays" in found["findings"][0]


def test_a_container_that_cannot_be_stopped_is_removed(settings, engine, gpu):
    engine.containers.append(container(gpu))
    engine.trouble["stop"] = EngineRefuses("stop: it is paused")
    assert answer("release", "lease1", "--yes")["released"][0]["gone"] is True


def test_one_that_stays_although_it_was_removed_is_not_called_gone(settings, engine, gpu):
    engine.containers.append(container(gpu))
    engine.trouble["remove"] = EngineRefuses("remove: in progress")
    found = answer("release", "lease1", "--yes", code=1)
    assert "still there" in found["findings"][0]


def test_nothing_is_ended_without_a_yes(settings, engine, gpu):
    engine.containers.append(container(gpu))
    result = run("release", "lease1")
    assert result.exit_code == 2
    assert result.stderr == ("gpucampus: End anna/train (lease lease1)? Say --yes, since there is nobody to ask\n")
    assert answer("release", "lease1", code=2)["findings"]
    assert engine.calls == []


@pytest.mark.parametrize(("typed", "code", "calls"), [("y\n", 0, 2), ("n\n", 1, 0), ("\n", 1, 0)])
def test_at_a_terminal_the_operator_is_asked(settings, engine, gpu, monkeypatch, typed, code, calls):
    engine.containers.append(container(gpu))
    monkeypatch.setattr("spawner.cli.show.asked_at_terminal", lambda: True)
    result = run("release", "lease1", typed=typed)
    assert (result.exit_code, len(engine.calls)) == (code, calls), result.output


@pytest.mark.parametrize("what", ["lease9", "anna/none", "ben/train", "short", ""])
def test_what_is_not_there_cannot_be_released(settings, engine, gpu, what):
    engine.containers.append(container(gpu))
    result = run("release", what, "--yes")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert engine.calls == []


def test_two_containers_of_one_server_are_told_apart_by_name(settings, engine, gpu):
    engine.containers += [container(gpu, "lease1"), container("GPU-x", "lease2")]
    found = answer("release", "anna/train", "--yes", code=2)
    assert "name one of c-lease1, c-lease2" in found["findings"][0]
    assert engine.calls == []
    answer("release", "c-lease2", "--yes")
    assert [item.name for item in engine.containers] == ["c-lease1"]


def test_a_server_of_another_hub_is_not_found_by_its_name(settings, engine, gpu):
    engine.containers.append(container(gpu, **{"gpucampus.hub": "other"}))
    assert run("release", "anna/train", "--yes").exit_code == 2
    assert "of the hub other" in run("release", "lease1").stderr
    assert answer("release", "lease1", "--yes")["released"][0]["by"] == "engine"


def test_nothing_is_released_while_the_engine_does_not_answer(settings, engine):
    engine.trouble["list"] = EngineUnknown("refused")
    assert "does not answer" in answer("release", "lease1", "--yes", code=1)["findings"][0]


# -- orphans ---------------------------------------------------------------------------------------------------------


def test_every_orphan_has_its_reason_and_the_command_that_removes_it(settings, engine, hub, gpu):
    engine.containers += [
        container(gpu, "known"),
        container("GPU-b", "lost", **{"gpucampus.user": "ben"}),
        container("GPU-c", "newer", **{"gpucampus.schema": "99"}),
        container("GPU-d", "theirs", **{"gpucampus.hub": "other"}),
    ]
    hub.servers.append(("anna", "train", "known"))
    found = answer("orphans", code=1)
    assert {row["container"]: row["reason"] for row in found["orphans"]} == {
        "c-lost": "the hub does not know this server",
        "c-newer": "its labels cannot be read: schema '99' is not 1",
        "c-theirs": "it belongs to the hub other; ask there first",
    }
    assert len(found["findings"]) == 2, "the lease of another hub is as it should be"
    assert "can be removed, not adopted" in found["adoption"]
    for row in found["orphans"]:
        program, *words = row["remove"].split()
        assert program == "gpucampus"
        answer(*words, "--yes")
    assert [item.name for item in engine.containers] == ["c-known"]
    assert answer("orphans")["orphans"] == []
    assert run("orphans").exit_code == 0


def test_a_leftover_of_a_server_that_runs_anew_is_an_orphan(settings, engine, hub, gpu):
    engine.containers += [container(gpu, "old"), container("GPU-b", "new")]
    hub.servers.append(("anna", "train", "new"))
    assert [row["lease"] for row in answer("orphans", code=1)["orphans"]] == ["old"]


def test_a_server_that_was_just_stopping_is_no_orphan(settings, engine, hub, gpu):
    engine.containers.append(container(gpu))

    def stopping() -> list[Container]:
        listed: list[Container] = engine.listing()
        engine.drop("lease1")
        return listed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spawner.docker_api.list_containers_once", stopping)
        assert answer("orphans")["orphans"] == []
    assert engine.listings == 2


def test_with_the_hub_down_only_what_labels_tell_is_listed(settings, engine, gpu):
    engine.containers += [container(gpu), container("GPU-d", "theirs", **{"gpucampus.hub": "other"})]
    found = answer("orphans", code=1)
    assert [row["lease"] for row in found["orphans"]] == ["theirs"]
    assert "so which leases it knows is unknown" in found["findings"][0]


def test_a_hub_that_does_not_answer_makes_no_server_an_orphan(settings, engine, hub, gpu):
    engine.containers.append(container(gpu))
    hub.broken = True
    assert answer("orphans", code=1)["orphans"] == []


def test_people_beyond_the_first_page_are_known(settings, engine, hub, gpu):
    engine.containers.append(container(gpu))
    hub.idle_people = 450
    hub.servers.append(("anna", "train", "lease1"))
    assert answer("orphans")["orphans"] == []
    assert hub.asked == ["GET /hub/api/users"] * 3


def test_labels_cannot_forge_the_command_that_is_to_be_typed(settings, engine):
    engine.containers.append(container("GPU-x", "x; reboot", **{"gpucampus.schema": "9", "gpucampus.user": "\x1b[31m"}))
    shown = run("orphans").stdout
    assert "\x1b" not in shown
    assert "gpucampus release 'c-x; reboot'" in shown


# -- drain, cordon, undrain --------------------------------------------------------------------------------------------


def test_a_cordon_closes_and_lets_servers_go_on(settings, engine, state, gpu):
    engine.containers.append(container(gpu))
    assert answer("cordon", gpu, "--reason", "noisy fan")["state"] == "cordoned"
    assert closed(state) == {gpu: "cordoned"}
    assert engine.calls == []
    (row,) = [line for line in run("gpus").stdout.splitlines() if gpu in line]
    assert "held, cordoned" in row
    assert "anna/train" in row
    (line,) = audited(state)
    assert (line["event"], line["gpus"], line["by"], line["target"], line["reason"]) == (
        "cordon",
        [gpu],
        "olga",
        gpu,
        "noisy fan",
    )


@pytest.mark.parametrize("up", [True, False], ids=["hub-up", "hub-down"])
def test_a_drain_closes_first_and_then_stops_only_what_is_there(settings, engine, state, gpu, plain_gpus, up, request):
    engine.containers += [container(gpu, "here"), container(plain_gpus.device("1").uuid, "elsewhere")]
    if up:
        request.getfixturevalue("hub").servers += [("anna", "train", "here")]
    found = answer("drain", gpu, "--yes")
    assert [(one["lease"], one["by"]) for one in found["released"]] == [("here", "hub" if up else "engine")]
    assert closed(state) == {gpu: "drained"}
    assert [item.id for item in engine.containers] == ["elsewhere"]
    assert [line["event"] for line in audited(state)][:2] == ["drain", "release"]


def test_a_drained_node_stops_everything_of_this_hub(settings, engine, state, gpu, plain_gpus):
    engine.containers += [container(gpu, f"lease{number}") for number in range(12)]
    engine.containers.append(container("GPU-d", "theirs", **{"gpucampus.hub": "other"}))
    found = answer("drain", NODE, "--yes", code=1)
    assert len(found["released"]) == 12
    (finding,) = found["findings"]
    assert finding.startswith("container c-theirs is on it and not this hub's to stop")
    assert [item.id for item in engine.containers] == ["theirs"]
    assert closed(state) == {NODE: "drained"}
    assert run("gpus").stdout.count("drained") == len(plain_gpus.devices)


def test_a_drained_gpu_takes_its_instances_along(settings, engine, state, plain_gpus):
    (parent,) = [device for device in plain_gpus.devices if device.mig_enabled]
    (first, *_) = [device for device in plain_gpus.devices if device.is_mig]
    engine.containers.append(container(first.uuid))
    assert len(answer("drain", parent.uuid, "--yes")["released"]) == 1


def test_a_start_that_was_granted_just_before_is_stopped_too(settings, engine, state, gpu):
    engine.containers.append(container(gpu, "first"))
    real = engine.remove

    def remove(container_id: str) -> None:
        real(container_id)
        if container_id == "first":
            engine.containers.append(container(gpu, "late"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spawner.docker_api.remove_once", remove)
        assert [one["lease"] for one in answer("drain", gpu, "--yes")["released"]] == ["first", "late"]


def test_a_drain_that_is_not_confirmed_changes_nothing(settings, engine, state, gpu):
    engine.containers.append(container(gpu))
    assert run("drain", gpu).exit_code == 2
    assert engine.calls == []
    assert not (state / "records.sqlite").exists()


def test_a_drain_of_an_idle_gpu_asks_nothing(settings, engine, state, gpu):
    assert run("drain", gpu).exit_code == 0
    assert closed(state) == {gpu: "drained"}


def test_a_cordon_does_not_weaken_a_drain(settings, engine, state, gpu):
    answer("drain", gpu)
    assert answer("cordon", gpu)["state"] == "drained"
    assert closed(state) == {gpu: "drained"}


@pytest.mark.parametrize("command", ["drain", "cordon"])
def test_undrain_lifts_both(settings, engine, state, gpu, command):
    answer(command, gpu, "--reason", "fan")
    result = run("undrain", gpu)
    assert result.exit_code == 0
    assert "by olga: fan" in result.stdout.replace("\n", " ")
    assert closed(state) == {}
    assert audited(state)[-1]["event"] == "undrain"
    assert "neither drained nor cordoned; closed is nothing" in answer("undrain", gpu, code=1)["findings"][0]


@pytest.mark.parametrize("command", ["drain", "cordon"])
@pytest.mark.parametrize("target", ["0", "GPU-none", "gpu", "", "other-node", "GPU-x\x1b[31m"])
def test_what_is_no_gpu_and_no_node_cannot_be_closed(settings, engine, state, command, target):
    result = run(command, target)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"the node is {NODE}" in result.stderr
    assert "\x1b" not in result.stderr
    assert not (state / "records.sqlite").exists()


def test_a_gpu_that_is_held_and_gone_can_be_closed(settings, engine, state):
    engine.containers.append(container("GPU-gone"))
    answer("cordon", "GPU-gone")
    assert closed(state) == {"GPU-gone": "cordoned"}


def test_a_driver_that_fails_does_not_keep_a_gpu_open(settings, engine, state, gpu):
    settings.write_text(settings.read_text().replace("library = '", "library = '/none"))
    answer("cordon", gpu)
    assert closed(state) == {gpu: "cordoned"}
    assert run("cordon", "nonsense").exit_code == 2


def test_a_drain_with_the_engine_down_says_so_before_it_closes(settings, engine, state, gpu):
    engine.trouble["list"] = EngineUnknown("refused")
    assert "does not answer" in answer("drain", gpu, "--yes", code=1)["findings"][0]


@pytest.mark.parametrize("words", [["cordon"], ["undrain"], ["history"]])
def test_records_that_are_broken_are_one_finding(settings, engine, state, gpu, words):
    state.mkdir()
    (state / "records.sqlite").write_bytes(b"this is no database " * 100)
    found = answer(*words, *([] if words == ["history"] else [gpu]), code=1)
    assert len(found["findings"]) == 1
    assert "records" in found["findings"][0]
    assert "what is cordoned is unknown" in answer("gpus", code=1)["findings"][0]


def test_looking_at_gpus_makes_no_database(settings, engine, state):
    run("gpus")
    assert not state.exists()


# -- history -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def past(state: Path) -> None:
    records = Records.open(f"sqlite:///{state / 'records.sqlite'}")
    for lease_id, user in [("one", "anna"), ("two", "ben")]:
        lease = from_labels(container("GPU-a", lease_id, **{"gpucampus.user": user}).labels)
        records.lease_granted(lease)
        records.lease_started(lease_id, "c", f"172.30.0.{len(user)}", datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    records.lease_ended("one", "stopped", datetime(2026, 1, 1, 1, tzinfo=UTC))
    records.close()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param([], {"one", "two"}, id="all"),
        pytest.param(["--user", "anna"], {"one"}, id="of-a-person"),
        pytest.param(["--user", "nobody"], set(), id="of-nobody"),
        pytest.param(["--address", "172.30.0.3"], {"two"}, id="of-an-address"),
        pytest.param(["--address", "172.30.0.4", "--at", "2026-01-01T00:30Z"], {"one"}, id="of-an-address-then"),
        pytest.param(["--address", "172.30.0.4", "--at", "2026-01-01T02:00"], set(), id="after-its-end"),
        pytest.param(["--at", "2026-01-01T02:30+02:00"], {"one", "two"}, id="in-another-zone"),
        pytest.param(["--limit", "1"], {"one"}, id="the-newest"),
    ],
)
def test_the_history_answers(settings, past, words, found):
    assert {item["lease"] for item in answer("history", *words)["history"]} == found
    shown = run("history", *words)
    assert shown.exit_code == 0
    assert all(lease in shown.stdout for lease in found)


@pytest.mark.parametrize("words", [["--at", "yesterday"], ["--address", "172.30.0"], ["--limit", "0"]])
def test_a_mistake_in_a_question_is_exit_2(settings, words):
    assert run("history", *words).exit_code == 2


# -- the token of the API ----------------------------------------------------------------------------------------------


def test_the_token_is_made_once_and_for_its_owner_alone(tmp_path):
    token = ensure_token(tmp_path, OPERATOR)
    path = tmp_path / "secrets" / "operator_token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert ensure_token(tmp_path, OPERATOR) == token
    assert [file.name for file in path.parent.iterdir()] == ["operator_token"]


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, b"Z" * 64], ids=["empty", "short", "bytes", "words"])
def test_a_broken_token_is_said_with_its_remedy_and_never_sent(tmp_path, content):
    path = tmp_path / "secrets" / "operator_token"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(SystemExit, match="operator_token"):
        ensure_token(tmp_path, OPERATOR)
    with pytest.raises(HubUnknown, match="operator_token"):
        HubAPI("127.0.0.1", 9, tmp_path).servers()


def test_the_token_is_in_no_output(settings, engine, hub, state, gpu):
    engine.containers.append(container(gpu))
    hub.broken = True
    shown = run("release", "lease1", "--yes").output + run("orphans").output
    assert hub.token not in shown + (state / "log" / "audit.jsonl").read_text()


def test_the_operator_may_not_do_more_than_the_command_line_asks():
    assert set(SCOPES) == {"list:users", "read:servers", "admin:server_state", "delete:servers"}
