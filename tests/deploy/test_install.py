"""What `make install` writes, in folders of the tests' own: no operator's file is lost, nothing stays half-made."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from deploy import install
from deploy.install import UNITS, Places, copy_project, missing, production_settings, write_settings
from deploy.listeners import Holder
from deploy.steps import ROOT, Problem
from spawner import settings as settings_file
from spawner.settings import Settings

EXAMPLE = (ROOT / "deploy/settings.example.toml").read_text(encoding="utf-8")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(
        prefix=ROOT,
        etc=tmp_path / "etc",
        state=tmp_path / "state",
        units=tmp_path / "units",
        nginx=tmp_path / "nginx",
        command=tmp_path / "bin/gpucampus",
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name, text in {"a.py": "old", "deep/b.py": "b", "tool": "#!/bin/sh"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tool").chmod(0o700)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    (folder / "notes.txt").write_text("not tracked")
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_prefix_holds_the_tracked_files_and_no_other_but_its_packages(checkout, tmp_path):
    prefix = tmp_path / "opt"
    copy_project(checkout, prefix)
    assert names(prefix) == {"a.py", "deep/b.py", "tool"}
    assert (prefix / "tool").stat().st_mode & 0o777 == 0o755, "root's own mask does not hide it from other users"
    assert (prefix / "a.py").stat().st_mode & 0o777 == 0o644
    for kept in (".venv/bin/python", "deploy/node_modules/x/y.js"):
        (prefix / kept).parent.mkdir(parents=True)
        (prefix / kept).touch()
    (checkout / "a.py").write_text("new")
    git(checkout, "rm", "--quiet", "--cached", "deep/b.py")
    copy_project(checkout, prefix)
    assert names(prefix) == {"a.py", "tool", ".venv/bin/python", "deploy/node_modules/x/y.js"}
    assert (prefix / "a.py").read_text() == "new"


def test_a_copy_that_was_broken_off_leaves_no_file_half_written(checkout, tmp_path, monkeypatch):
    prefix = tmp_path / "opt"
    copy_project(checkout, prefix)
    (checkout / "a.py").write_text("new")

    def full(_source: object, target: Path) -> None:
        Path(target).write_text("ne")
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", full)
        with pytest.raises(OSError, match="No space"):
            copy_project(checkout, prefix)
    assert (prefix / "a.py").read_text() == "old"
    copy_project(checkout, prefix)
    assert names(prefix) == {"a.py", "deep/b.py", "tool"}
    assert (prefix / "a.py").read_text() == "new"


def test_the_first_settings_are_the_example_with_the_places_of_production(places):
    write_settings(places)
    found, example = settings_file.load(places.settings), settings_file.load(ROOT / "deploy/settings.example.toml")
    assert (found.state, found.config_dir) == (places.state, places.etc / "config.d")
    assert (found.hub.run_culler, found.hub.listen_port) == (False, 8000)
    assert found.sign_in.client_secret_file == places.etc / "client_secret"
    assert found.roles == example.roles
    assert not found.gpus.simulated
    first = places.settings.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# Settings of this hub")
    assert "Copy this file" not in places.settings.read_text()


def test_an_example_that_has_changed_under_us_is_an_error_and_not_a_wrong_file(places):
    with pytest.raises(ValueError, match="public_url"):
        production_settings(EXAMPLE.replace("public_url =", "public_url=", 1), places)


def test_settings_and_secret_of_the_operator_stay(places):
    write_settings(places)
    assert (places.etc / "client_secret").stat().st_mode & 0o777 == 0o600
    places.settings.write_text("mine")
    (places.etc / "client_secret").write_text("secret")
    assert "stays as it is" in write_settings(places)
    assert (places.settings.read_text(), (places.etc / "client_secret").read_text()) == ("mine", "secret")


def test_what_is_left_to_do_is_said_and_shrinks(places, tmp_path):
    write_settings(places)
    left = list(missing(places, settings_file.load(places.settings)))
    assert [
        word for word in ("sign_in", "secret", "certificate", "homes") if not any(word in line for line in left)
    ] == []
    text = places.settings.read_text().replace("hub.example.org", "hub.campus.org").replace("sso.example", "sso.campus")
    places.settings.write_text(text.replace("/srv/homes", str(tmp_path)))
    (places.etc / "client_secret").write_text("secret")
    settings = settings_file.load(places.settings)
    (line,) = missing(places, settings)
    assert "hub.campus.org and *.hub.campus.org" in line
    assert install.write_site(places, settings).endswith("sites-available/gpucampus.conf")
    assert not (places.nginx / "sites-enabled").exists(), "a site without its certificate would stop the web server"
    (places.etc / "tls/fullchain.pem").touch()
    assert list(missing(places, settings)) == []
    install.write_site(places, settings)
    assert (places.nginx / "sites-enabled/gpucampus.conf").exists()


def test_the_web_servers_site_is_the_operators_once_it_is_there(places):
    write_settings(places)
    places.settings.write_text(places.settings.read_text().replace("example.org", "campus.org"))
    site = places.nginx / "sites-available/gpucampus.conf"
    settings = settings_file.load(places.settings)
    install.write_site(places, settings)
    assert "server_name hub.campus.org *.hub.campus.org;" in site.read_text()
    assert "@" not in site.read_text()
    site.write_text("mine")
    install.write_site(places, settings)
    assert site.read_text() == "mine"


def test_units_and_command_name_no_place_that_was_not_filled_in(places):
    settings = moved(places)
    install.write_units(places, settings)
    install.write_command(places)
    assert {path.name for path in places.units.iterdir()} == set(UNITS)
    for file in (*places.units.iterdir(), places.command):
        text = file.read_text()
        assert str(ROOT) in text
        assert not [word for word in ("@PREFIX", "@STATE", "@SETTINGS", "@ETC") if word in text]
    proxy = (places.units / UNITS[0]).read_text()
    assert f"LoadCredential=proxy_token:{settings.state}/secrets/proxy_token" in proxy, "where the settings say"


def moved(places: Places) -> Settings:
    """The settings of an operator who keeps the state elsewhere."""
    write_settings(places)
    text = places.settings.read_text(encoding="utf-8")
    places.settings.write_text(text.replace(f'state = "{places.state}"', f'state = "{places.state}-elsewhere"'))
    settings = settings_file.load(places.settings)
    assert settings.state != places.state
    return settings


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for systemd: notes what it is asked; answers what the file `says` holds, else fails."""
    folder = tmp_path / "systemctl"
    folder.mkdir()
    program = folder / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/asked\ncat {folder}/says 2>/dev/null || true\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def test_systemd_reads_units_anew_only_where_they_have_changed(places, systemctl, tmp_path):
    settings = moved(places)
    install.write_units(places, settings)
    before = [(places.units / name).stat().st_mtime_ns for name in UNITS]
    install.write_units(places, settings)
    assert [(places.units / name).stat().st_mtime_ns for name in UNITS] == before
    (systemctl / "says").write_text("no\n\nno\n\nno\n")
    install.reload_units(tmp_path / "log")
    assert "daemon-reload" not in (systemctl / "asked").read_text()
    (systemctl / "says").write_text("no\n\nyes\n\nno\n")
    install.reload_units(tmp_path / "log")
    assert (systemctl / "asked").read_text().endswith("\ndaemon-reload\n")


def test_a_program_of_others_on_a_port_is_named_and_one_of_ours_is_welcome(places, systemctl, monkeypatch):
    monkeypatch.setattr("deploy.listeners.holders", lambda *_: [])
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = moved(places)
        settings = settings.model_copy(update={"hub": settings.hub.model_copy(update={"hub_port": port})})
        held = [Holder(pid=os.getpid(), name="jupyterhub")]
        monkeypatch.setattr("deploy.listeners.holders", lambda number, *_: held if number == port else [])
        (systemctl / "says").write_text("0\n\n0\n\n0\n")
        with pytest.raises(Problem, match=rf"Port {port} \(the hub\) is taken by jupyterhub .*make stop"):
            install.check_ports(settings)
        (systemctl / "says").write_text(f"0\n\n{os.getpid()}\n\n0\n")
        install.check_ports(settings)


def test_another_web_server_is_named_and_nginx_is_welcome(places, systemctl, monkeypatch):
    web = {80: "nginx", 443: "apache2"}
    monkeypatch.setattr(
        "deploy.listeners.holders", lambda number, *_: [Holder(pid=7, name=web[number])] if number in web else []
    )
    with pytest.raises(Problem, match="443") as refused:
        install.check_ports(moved(places))
    assert "apache2 (process 7)" in str(refused.value)
    assert "nginx" not in str(refused.value)


def test_services_that_start_at_boot_already_are_not_enabled_again(systemctl, monkeypatch, tmp_path):
    (systemctl / "nginx").symlink_to("systemctl")
    install.start(tmp_path / "log")
    asked = (systemctl / "asked").read_text().splitlines()
    assert not [line for line in asked if line.startswith("enable")]
    assert f"restart {UNITS[1]} {UNITS[2]}" in asked
    assert f"start {UNITS[0]}" in asked, "the proxy goes on"


def test_a_strict_mask_of_roots_hides_nothing_from_the_services_users(monkeypatch):
    masks = []

    def check() -> None:
        masks.append(os.umask(0o077))
        raise Problem("seen enough")

    monkeypatch.setattr(install, "check", check)
    before = os.umask(0o077)
    try:
        with pytest.raises(SystemExit, match="seen enough"):
            install.main()
    finally:
        os.umask(before)
    assert masks == [0o022]


@pytest.mark.parametrize("what", ["another-users", "no-checkout"])
def test_a_folder_whose_files_git_does_not_tell_is_refused_in_words(checkout, tmp_path, monkeypatch, what):
    if what == "no-checkout":
        shutil.rmtree(checkout / ".git")
    else:
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for file in ("GLOBAL", "SYSTEM"):  # a machine of tests may trust every owner
        monkeypatch.setenv(f"GIT_CONFIG_{file}", os.devnull)
    with pytest.raises(Problem, match=r"safe\.directory"):
        copy_project(checkout, tmp_path / "opt")


def test_settings_that_cannot_be_used_start_nothing(places, tmp_path):
    places.command.parent.mkdir()
    places.command.write_text("#!/bin/sh\necho roles.student: no such group >&2\nexit 1\n")
    places.command.chmod(0o755)
    with pytest.raises(Problem, match=r"nothing was started anew: roles.student"):
        install.check_settings(places)


def test_without_systemd_it_says_what_to_do_instead(monkeypatch):
    monkeypatch.setattr("pathlib.Path.is_dir", lambda _path: False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(Problem, match="programs hub"):
        install.check()


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Problem, match="sudo"):
        install.check()


def test_the_guide_shows_what_is_really_said_at_the_end(places):
    write_settings(places)
    usual = Places()
    said = install.farewell(
        usual, settings_file.load(places.settings), missing(places, settings_file.load(places.settings))
    )
    said = said.replace(str(places.etc), str(usual.etc))
    guide = (ROOT / "docs/howto/install.md").read_text(encoding="utf-8")
    shown = guide.partition("<!-- left -->\n```\n")[2].partition("\n```")[0]
    assert shown == said.strip()


def test_the_guide_names_every_unit_and_only_files_that_are_written(places):
    guide = (ROOT / "docs/howto/install.md").read_text(encoding="utf-8")
    for name in UNITS:
        assert f"`{name.removesuffix('.service')}`" in guide
    for path in (Places().settings, Places().command, Places().nginx / "sites-enabled/gpucampus.conf"):
        assert str(path) in guide
