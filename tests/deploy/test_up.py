"""What `make run` finds out before it starts, and what it says at its end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy import outside, programs, up
from deploy.steps import ROOT, Problem
from spawner import settings as settings_file

OWN = """
version = 1
[hub]
name = "lab"
public_url = "https://hub.example.org"
hub_port = 9081
proxy_api_port = 9001
[network]
name = "lab-net"
[sign_in]
issuer = "https://sso.example.org"
client_id = "x"
client_secret_file = "/none"
[roles.student]
groups = ["students"]
memory = "8G"
default_memory = "4G"
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUCAMPUS_STATE", str(tmp_path))
    for name in ("GPUCAMPUS_SETTINGS", "GPUCAMPUS_PORT", "GPUCAMPUS_SUBNET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings_file, "ROOT", tmp_path / "no-settings-here")
    return tmp_path


def test_the_demo_is_planned_by_its_port(state, monkeypatch):
    assert list(up.make_plan(state).ports) == [8000, 8001, 8010, 8081]
    monkeypatch.setenv("GPUCAMPUS_PORT", "9000")
    plan = up.make_plan(state)
    assert (plan.hub, plan.network, list(plan.ports)) == ("gpucampus-9000", "gpucampus-9000", [9000, 9001, 9010, 9081])


@pytest.mark.parametrize("place", ["settings.toml", "elsewhere.toml"], ids=["the-demo-s-made-one-s-own", "named"])
def test_settings_of_one_s_own_are_planned_by_what_they_say(state, place, monkeypatch):
    (state / place).write_text(OWN)
    if place != "settings.toml":
        monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(state / place))
    plan = up.make_plan(state)
    assert (plan.hub, plan.network, list(plan.ports)) == ("lab", "lab-net", [8000, 9001, 9081])


def test_the_demo_s_own_file_of_an_earlier_run_plans_nothing(state):
    (state / "settings.toml").write_text(f"{outside.DEMO_HEADER}\n{OWN}")
    assert up.make_plan(state).hub == "gpucampus"


def test_a_state_folder_of_another_hub_is_refused_before_anything_is_done(state, monkeypatch):
    monkeypatch.setattr("deploy.preflight.ports", lambda *_: [])
    up.look(state, up.make_plan(state))
    monkeypatch.setenv("GPUCAMPUS_PORT", "9000")
    with pytest.raises(Problem, match=r"belongs to the hub gpucampus, .* GPUCAMPUS_STATE"):
        up.look(state, up.make_plan(state))
    assert str(ROOT) in (state / "belongs-to.json").read_text()


def settings() -> Any:
    return SimpleNamespace(
        hub=SimpleNamespace(public_url="http://localhost:8000"), sign_in=SimpleNamespace(issuer="http://127.0.0.1:8010")
    )


@pytest.mark.parametrize(
    ("env", "host"),
    [
        pytest.param({"DISPLAY": ":0"}, None, id="a-desktop"),
        pytest.param({"WAYLAND_DISPLAY": "wayland-0"}, None, id="a-wayland-desktop"),
        pytest.param({"SUDO_USER": "ann"}, "ann@gpu1", id="no-desktop"),
        pytest.param(
            {"SSH_CONNECTION": "192.0.2.9 5000 192.0.2.7 22", "DISPLAY": "localhost:10.0", "SUDO_USER": "ann"},
            "ann@192.0.2.7",
            id="by-ssh-with-forwarded-display",
        ),
    ],
)
def test_who_has_no_desktop_here_is_told_the_tunnel_of_both_ports(env, host, monkeypatch):
    monkeypatch.setattr("deploy.up.socket.gethostname", lambda: "gpu1")
    wanted = f"ssh -L 8000:localhost:8000 -L 8010:127.0.0.1:8010 {host}" if host else ""
    assert up.tunnel(env, settings()) == wanted


@pytest.mark.parametrize(
    ("built", "room_gib", "small"),
    [
        pytest.param(True, 1, False, id="built-already"),
        pytest.param(False, 20, False, id="room"),
        pytest.param(False, 5, True, id="room-for-plain"),
    ],
)
def test_a_small_disk_gets_the_small_image(built, room_gib, small, state, monkeypatch):
    monkeypatch.setattr("deploy.build_images.exists", lambda _: built)
    monkeypatch.setattr("deploy.engine.root_folder", lambda: Path("/"))
    monkeypatch.setattr("deploy.preflight.free_bytes", lambda place: room_gib << 30 if place == Path("/") else 99 << 30)
    assert up._too_small_for("gpucampus/cpu", state) is small


def test_a_disk_too_small_for_anything_is_refused(state, monkeypatch):
    monkeypatch.setattr("deploy.build_images.exists", lambda _: False)
    monkeypatch.setattr("deploy.engine.root_folder", lambda: Path("/"))
    monkeypatch.setattr("deploy.preflight.free_bytes", lambda _: 2 << 30)
    with pytest.raises(Problem, match="smallest demo needs 3"):
        up._too_small_for("gpucampus/cpu", state)


def test_a_secret_that_was_broken_off_half_way_is_made_whole(state):
    (state / "secrets").mkdir()
    (state / "secrets/proxy_token.new").write_text("ab")
    made = programs.secret(state, "proxy_token")
    assert len(made) == 64
    assert programs.secret(state, "proxy_token") == made
    assert (state / "secrets/proxy_token").stat().st_mode & 0o777 == 0o600
