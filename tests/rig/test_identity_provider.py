"""The demo's identity provider, asked as a browser and a hub would."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.demo.setup import Demo, prepare
from tests.rig.provider import Client, free_port, running_provider

pytestmark = pytest.mark.hub


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUCAMPUS_PORT", str(free_port()))
        return prepare(tmp_path_factory.mktemp("demo") / "state")


@pytest.fixture(scope="module")
def issuer(demo: Demo) -> Iterator[str]:
    """One provider for the tests that do not restart it; each has a browser and an account of its own."""
    with running_provider(demo.folder) as address:
        yield address


@pytest.fixture
def client(demo: Demo, issuer: str) -> Client:
    return Client(issuer, demo.folder)


@pytest.fixture
def stopped_demo(demo: Demo, tmp_path: Path) -> Demo:
    """The same accounts in a folder and on a port of their own, for tests that start the provider themselves."""
    folder = tmp_path / "demo"
    folder.mkdir()
    for name in ("users.json", "clients.json", "keys.json"):
        if (demo.folder / name).exists():
            shutil.copy(demo.folder / name, folder / name)
    (folder / "idp.json").write_text(json.dumps({"port": free_port()}), encoding="utf-8")
    return replace(demo, folder=folder)


def change(path: Path, edit: Callable[[dict[str, dict[str, object]]], None]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_the_right_password_leads_back_to_the_hub_with_name_and_groups(demo: Demo, client: Client) -> None:
    tokens = client.tokens(client.submit(client.authorize(), "admin", demo.passwords["admin"]))
    person = client.person(tokens["access_token"])
    assert {key: person[key] for key in ("sub", "preferred_username", "groups")} == {
        "sub": "demo-admin",
        "preferred_username": "admin",
        "groups": ["hub-admins", "researchers"],
    }
    assert tokens["refresh_token"]


def test_a_wrong_password_is_said_in_an_alert_and_the_account_is_kept_escaped(client: Client) -> None:
    page = client.authorize()
    answer = client.submit(page, '"><script>alert(1)</script>', "guess")
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text


def test_many_wrong_passwords_close_one_account_for_a_while(demo: Demo, client: Client) -> None:
    page = client.authorize()
    statuses = [client.submit(page, "researcher", "guess").status_code for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    assert client.submit(page, "researcher", demo.passwords["researcher"]).status_code == 429
    assert client.submit(page, "admin", demo.passwords["admin"]).is_redirect


def test_without_pkce_nobody_signs_in(client: Client) -> None:
    answer = client.authorize(pkce=False)
    assert "error=invalid_request" in answer.headers["location"]


def test_a_restart_keeps_sessions_and_refresh_tokens(stopped_demo: Demo) -> None:
    with running_provider(stopped_demo.folder) as issuer:
        client = Client(issuer, stopped_demo.folder)
        tokens = client.tokens(client.submit(client.authorize(), "student", stopped_demo.passwords["student"]))
    with running_provider(stopped_demo.folder):
        assert client.refresh(tokens["refresh_token"]).status_code == 200
        assert client.tokens(client.authorize())["access_token"]


def test_an_account_that_is_disabled_gets_no_new_token_and_no_sign_in(demo: Demo, client: Client) -> None:
    tokens = client.tokens(client.submit(client.authorize(), "teacher", demo.passwords["teacher"]))
    change(demo.folder / "users.json", lambda users: users["teacher"].update(disabled=True))
    assert client.refresh(tokens["refresh_token"]).status_code == 400
    again = Client(client.issuer, demo.folder)
    assert again.submit(again.authorize(), "teacher", demo.passwords["teacher"]).status_code == 401


def test_a_change_of_groups_is_seen_at_once(demo: Demo, client: Client) -> None:
    tokens = client.tokens(client.submit(client.authorize(), "student", demo.passwords["student"]))
    change(demo.folder / "users.json", lambda users: users["student"].update(groups=["teachers"]))
    assert client.person(tokens["access_token"])["groups"] == ["teachers"]


def test_signing_out_ends_the_session(demo: Demo, client: Client) -> None:
    client.tokens(client.submit(client.authorize(), "student", demo.passwords["student"]))
    assert "You are signed out" in client.sign_out().text
    assert 'name="password"' in client.authorize().text


def test_the_store_is_private_and_forgets_what_has_expired(stopped_demo: Demo) -> None:
    store = stopped_demo.folder / "store.json"
    store.write_text(json.dumps({"Grant:old": {"payload": {}, "expires": int(time.time()) - 1}}), encoding="utf-8")
    with running_provider(stopped_demo.folder) as issuer:
        Client(issuer, stopped_demo.folder).authorize()
        assert "Grant:old" not in json.loads(store.read_text(encoding="utf-8"))
        assert store.stat().st_mode & 0o777 == 0o600


def test_a_store_that_cannot_be_read_is_set_aside(stopped_demo: Demo) -> None:
    (stopped_demo.folder / "store.json").write_text("{", encoding="utf-8")
    with running_provider(stopped_demo.folder) as issuer:
        client = Client(issuer, stopped_demo.folder)
        assert client.submit(client.authorize(), "student", stopped_demo.passwords["student"]).is_redirect
    assert (stopped_demo.folder / "store.json.broken").read_text(encoding="utf-8") == "{"
