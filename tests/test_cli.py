"""The command line says what is, also while hub and engine are down, and its exit code says whether all is well."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from deploy.demo.gpus.make import SimulatedGPUs
from spawner import cli
from spawner.core.ledger import Container, to_labels
from spawner.core.model import GIB, Lease, Mode
from spawner.docker_api import EngineUnknown
from tests.test_settings import LEAST

COMMANDS = ["gpus", "leases", "orphans", "history", "status", "catalog"]


@pytest.fixture
def settings(plain_gpus: SimulatedGPUs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings with simulated GPUs."""
    path = tmp_path / "settings.toml"
    gpus = f"library = '{plain_gpus.library}'\ndevice_dir = '{plain_gpus.device_dir}'\nsimulated = true\n"
    path.write_text(f"state = '{tmp_path}/state'\n{LEAST}\n[gpus]\n{gpus}")
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(path))
    return path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[Container]:
    """What the engine lists; a test adds to it."""
    containers: list[Container] = []
    monkeypatch.setattr("spawner.docker_api.list_containers_once", lambda: containers)
    return containers


@pytest.fixture
def dead_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Container]:
        raise EngineUnknown("connection refused")

    monkeypatch.setattr("spawner.docker_api.list_containers_once", fail)


@pytest.fixture
def hub(settings: Path) -> Iterator[None]:
    """Something that answers where the hub would."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/hub/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    # nothing but its health: the token of the API is not there
    text = settings.read_text() + f"[hub]\nhub_port = {server.server_port}\n[network]\nsubnet = '127.0.0.0/24'\n"
    settings.write_text(text)
    yield
    server.shutdown()
    server.server_close()


def container(gpu: str, lease_id: str = "lease1", **labels: str) -> Container:
    """A running server of anna's that holds a GPU; labels of a test's own are written over its lease's."""
    granted = datetime(2026, 1, 1, tzinfo=UTC)
    lease = Lease(
        id=lease_id,
        hub="gpucampus",
        kind="server",
        user="anna",
        server="train",
        variant="cpu",
        image="sha256:1",
        gpus=(gpu,),
        mode=Mode.EXCLUSIVE,
        memory_bytes=4 * GIB,
        cpus=2.0,
        granted=granted,
        expires=datetime.now(UTC) + timedelta(hours=3, minutes=5, seconds=30),
    )
    return Container(id=lease_id, name=f"c-{lease_id}", state="running", labels={**to_labels(lease), **labels})


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words), prog_name="gpucampus", env={"COLUMNS": "80"})


def answer(*words: str, code: int = 0) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout))


def test_settings_check_says_ok(settings):
    result = run("settings", "check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert str(settings) in result.stdout.replace("\n", "")


def test_settings_check_takes_a_path(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(LEAST)
    assert answer("settings", "check", str(path)) == {"path": str(path), "findings": []}


@pytest.mark.parametrize(
    ("addition", "word"),
    [
        pytest.param("[hub]\nnmae = 'x'\n", "hub.nmae is not a setting", id="unknown-key"),
        pytest.param("[hub]\nlanguage = 'fr'\n", "hub.language = 'fr'", id="bad-value"),
    ],
)
def test_settings_check_finds_a_mistake_in_one_line(settings, addition, word):
    settings.write_text(settings.read_text() + addition)
    result = run("settings", "check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr
    assert word in answer("settings", "check", code=1)["findings"][0]


def test_settings_check_reads_the_catalog_too(settings, tmp_path):
    own = tmp_path / "catalog.toml"
    settings.write_text(f"catalog = '{own}'\n{settings.read_text()}")
    assert "cannot be read" in answer("settings", "check", code=1)["findings"][0]
    own.write_text(
        "version = 1\n[base]\nimage = 'b'\nsuite = 'bookworm'\n"
        "[variants.x]\ntitle = 'X'\nfolder = 'images/x'\nimage = 'x:1'\ndefault = true\nroles = ['professor']\n"
    )
    assert "professor, which is no role" in answer("settings", "check", code=1)["findings"][0]


@pytest.mark.parametrize("command", COMMANDS)
def test_broken_settings_are_a_finding_of_every_command(settings, command):
    settings.write_text("version = 7")
    assert run(command).exit_code == 1
    assert answer(command, code=1)["findings"]


@pytest.mark.parametrize("words", [["nope"], ["gpus", "--nope"], ["settings", "check", "a", "b"]])
def test_a_mistyped_command_is_exit_2(words):
    assert run(*words).exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_table_says_simulated(settings, engine, command):
    assert "simulated" in run(command).stdout


def test_no_table_says_simulated_where_gpus_are_real(settings, engine):
    settings.write_text(settings.read_text().replace("simulated = true", "simulated = false"))
    assert "simulated" not in run("gpus").stdout


def test_gpus_are_listed_whole_with_who_holds_them(settings, engine, plain_gpus):
    engine.append(container(plain_gpus.device("1").uuid))
    result = run("gpus")
    assert result.exit_code == 0
    for device in plain_gpus.devices:
        assert device.uuid in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if plain_gpus.device("1").uuid in line]
    assert "anna/train" in row
    assert len(re.findall("free", result.stdout)) == 4
    assert "split by MIG" in result.stdout


def test_gpus_as_json(settings, engine, plain_gpus):
    engine.append(container(plain_gpus.device("1").uuid))
    found = answer("gpus")
    assert found["node"]["simulated"] is True
    assert len(found["node"]["gpus"]) == 4
    holder = {"lease": "lease1", "hub": "gpucampus", "user": "anna", "server": "train"}
    assert found["holders"] == {plain_gpus.device("1").uuid: [holder]}


def test_a_held_gpu_that_is_not_there_is_a_finding(settings, engine):
    engine.append(container("GPU-gone"))
    assert answer("gpus", code=1)["findings"] == ["GPU-gone is held by anna/train and not in the inventory"]


@pytest.mark.usefixtures("dead_engine")
def test_with_a_dead_engine_no_gpu_is_called_free(settings):
    result = run("gpus")
    assert result.exit_code == 1
    assert "free" not in result.stdout
    assert "unknown" in result.stdout
    assert "does not answer" in result.stderr


def test_a_library_that_is_not_there_is_a_finding(settings, engine):
    settings.write_text(re.sub("library = .*", "library = '/none.so'", settings.read_text()))
    assert "none.so" in answer("gpus", code=1)["findings"][0]


def test_a_machine_without_gpus_is_well_where_the_settings_say_so(settings, engine):
    settings.write_text(f"state = '{settings.parent}/state'\n{LEAST}[gpus]\ninventory = 'none'\n")
    assert answer("gpus")["node"]["gpus"] == []


def test_leases_are_those_of_the_engine(settings, engine, plain_gpus):
    uuid = plain_gpus.device("0").uuid
    engine.append(container(uuid))
    result = run("leases")
    assert result.exit_code == 0
    for word in ("lease1", "anna", "train", uuid, "4 GiB", "in 3 h 05 min"):
        assert word in result.stdout
    assert answer("leases")["leases"][0]["gpus"] == [uuid]


def test_two_leases_of_one_gpu_are_both_shown_and_a_finding(settings, engine):
    engine += [container("GPU-x", "lease1"), container("GPU-x", "lease2")]
    found = answer("leases", code=1)
    assert len(found["leases"]) == 2
    assert found["findings"] == ["GPU GPU-x is held by more than one lease: lease1, lease2"]


def test_a_container_that_cannot_be_read_is_a_finding(settings, engine):
    engine.append(container("GPU-x", **{"gpucampus.schema": "99"}))
    assert "cannot be read as a lease" in answer("leases", code=1)["findings"][0]


def test_labels_of_others_cannot_colour_the_terminal(settings, engine):
    engine.append(container("GPU-x", **{"gpucampus.user": "[red]x[/red]\x1b[31m"}))
    shown = run("leases").stdout
    assert "[red]x[/red]" in shown
    assert "\x1b" not in shown


@pytest.mark.usefixtures("hub")
def test_status_is_well_when_all_answer(settings, engine, plain_gpus):
    engine.append(container(plain_gpus.device("0").uuid))
    found = answer("status")
    assert found == {
        "simulated": True,
        "hub": True,
        "engine": True,
        "gpus": 4,
        "gpus_held": 1,
        "gpus_unhealthy": 0,
        "leases": 1,
        "findings": [],
    }
    assert "4: 1 held, 0 unhealthy" in run("status").stdout


@pytest.mark.usefixtures("dead_engine")
def test_status_finds_what_does_not_answer(settings):
    settings.write_text(settings.read_text() + "[hub]\nhub_port = 9\n[network]\nsubnet = '127.0.0.0/24'\n")
    found = answer("status", code=1)
    assert (found["hub"], found["engine"]) == (False, False)
    assert len(found["findings"]) == 2
    assert "does not answer" in run("status").stdout


def test_catalog_lists_the_variants(settings):
    names = [variant["name"] for variant in answer("catalog")["variants"]]
    assert "cpu" in names
    shown = run("catalog").stdout
    assert "cu126 (default)" in shown
    assert "no GPU needed" in shown
