"""The settings file: what it says is what the code has, and a mistake in it is one line."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from spawner import settings as module
from spawner.core.limits import limits_for
from spawner.core.model import GIB, Limits, Mode
from spawner.settings import RoleSettings, Settings, SettingsError, load, locate

EXAMPLE = module.ROOT / "deploy" / "settings.example.toml"
LEAST = """
version = 1
[sign_in]
issuer = "https://sso.example.org"
client_id = "gpucampus"
client_secret_file = "/etc/gpucampus/client_secret"
[roles.student]
groups = ["students"]
memory = "8G"
default_memory = "4G"
"""


def model_keys(model: type[BaseModel] = Settings, section: str = "") -> set[str]:
    """All keys of the models as section.key; a role's section is `roles`."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        kind = RoleSettings if name == "roles" else field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys |= model_keys(kind, name)
        else:
            keys.add(f"{section}.{name}".lstrip("."))
    return keys


def example_lines() -> list[tuple[str, str]]:
    """(section, key) of all keys in the example, those in comments included."""
    found, section = [], ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"\[([a-z_]+)(?:\..*)?\]", line):
            section = match[1]
        elif match := re.match(r"(?:# )?([a-z_]+) = \S", line):
            found.append((section, match[1]))
    return found


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaint(tmp_path: Path, text: str) -> str:
    """What a settings file is refused with, without its path."""
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def test_example_is_usable():
    load(EXAMPLE)


def test_example_is_usable_with_the_keys_in_comments(tmp_path):
    text = re.sub(r"(?m)^# ([a-z_]+ = \")", r"\1", EXAMPLE.read_text(encoding="utf-8"))
    settings = load(write(tmp_path, text))
    assert settings.gpus.library is not None
    assert settings.config_dir is not None


def test_example_has_every_key_and_no_other():
    assert {f"{section}.{key}".lstrip(".") for section, key in example_lines()} == model_keys()


def test_example_explains_every_key_above_it():
    """Each key stands under a comment, or directly under another key that shares one."""
    before = ""
    for line in EXAMPLE.read_text(encoding="utf-8").split("[roles.researcher]")[0].splitlines():
        if re.match(r"[a-z_]+ = ", line):
            assert before.startswith("#") or " = " in before, line
        before = line


def test_a_role_of_the_least_memory_can_start(tmp_path):
    text = LEAST.replace('"8G"', '"256M"').replace('"4G"', '"256M"')
    settings = load(write(tmp_path, text))
    (student,) = settings.entitlement_roles()
    assert isinstance(limits_for(student.entitlement, None, settings.container_defaults()), Limits)


def test_example_shows_the_defaults(tmp_path):
    shown, least = load(EXAMPLE), load(write(tmp_path, LEAST))
    for name in ("state", "catalog", "hub", "network", "campus", "homes", "gpus", "containers", "config_dir"):
        assert getattr(shown, name) == getattr(least, name), name


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("[hub]\nnmae = 'x'", ["hub.nmae is not a setting", "public_url"], id="unknown-key"),
        pytest.param(
            "[roles.student]\ngroup = ['x']", ["roles.student.group is not", "default_memory"], id="in-a-role"
        ),
        pytest.param("[hub]\nlanguage = 'fr'", ["hub.language = 'fr'", "allowed is 'en' or 'zh'"], id="choice"),
        pytest.param("[hub]\nhub_port = 70000", ["hub.hub_port = 70000", "allowed is", "65535"], id="port"),
        pytest.param("[containers]\nshm = '4 elephants'", ["containers.shm", "'4 elephants'", '"4G"'], id="size"),
        pytest.param("[containers]\nshm = 0", ["containers.shm = 0", '"4G"'], id="size-zero"),
        pytest.param("[containers]\nshm = true", ["containers.shm = True", '"4G"'], id="size-bool"),
        pytest.param("[containers]\nstart_timeout = 120", ["start_timeout = 120", '"8h"'], id="duration-without-unit"),
        pytest.param("[homes]\nuid_min = 0", ["homes.uid_min = 0", "1000"], id="root-is-nobody's-uid"),
        pytest.param("[homes]\nuid_min = 5000\nuid_max = 4000", ["homes: uid_max is below uid_min"], id="empty-range"),
        pytest.param(
            "[hub]\npublic_url = 'hub.example.org'", ["hub.public_url", "https://"], id="address-without-scheme"
        ),
        pytest.param("[network]\nsubnet = '10.0.0.1/8'", ["network.subnet = '10.0.0.1/8'"], id="subnet-with-host-bits"),
        pytest.param("[roles.BIG]\ngroups = ['x']", ["roles.BIG = 'BIG'"], id="role-name"),
        pytest.param("[roles.ta]\ngroups = []", ["roles.ta.groups"], id="role-without-groups"),
        pytest.param(
            "[roles.ta]\ngroups = ['x']\nmodes = ['exclusive']\nmemory = '2G'\ndefault_memory = '1G'",
            ["roles.ta:", "gpus is 0"],
            id="mode-without-gpus",
        ),
        pytest.param(
            "[roles.ta]\ngroups = ['x']\nmemory = '1G'\ndefault_memory = '2G'",
            ["roles.ta:", "default_memory"],
            id="default-above-most",
        ),
        pytest.param(
            "[roles.ta]\ngroups = ['x']\nmemory = '1G'\ndefault_memory = '255M'",
            ["roles.ta.default_memory = '255M'", 'allowed is "256M" or more', "no server starts with less"],
            id="default-that-no-server-starts-with",
        ),
        pytest.param(
            "[roles.ta]\ngroups = ['x']\nmemory = 268435455\ndefault_memory = '256M'",
            ["roles.ta.memory = 268435455", 'allowed is "256M" or more'],
            id="most-that-no-server-starts-with",
        ),
        pytest.param(
            "[campus]\nhttp_proxy = 'proxy:3128'",
            ["campus.http_proxy = 'proxy:3128'", "http://"],
            id="proxy-without-http",
        ),
        pytest.param(
            "[campus]\nhttp_proxy = 'http://a:b@proxy:1'", ["campus.http_proxy", "without a password"], id="told-to-all"
        ),
        pytest.param("[campus]\npip_index = 'pypi.org'", ["campus.pip_index", "https://"], id="mirror"),
        pytest.param("[campus]\nno_proxy = ['a b']", ["campus.no_proxy.0 = 'a b'"], id="no-proxy"),
        pytest.param("[gpus]\ninjection = 'magic'", ["gpus.injection = 'magic'", "'cdi'"], id="injection"),
    ],
)
def test_mistake_names_key_value_and_what_is_allowed(tmp_path, line, words):
    base = LEAST if "[roles.student]" not in line else LEAST.replace("[roles.student]", line)
    said = complaint(tmp_path, base if base != LEAST else f"{LEAST}{line}\n")
    for word in words:
        assert word in said


@pytest.mark.parametrize("key", ["version", "issuer", "client_id", "client_secret_file", "groups", "memory"])
def test_missing_key_is_named(tmp_path, key):
    text = re.sub(rf"(?m)^{key} = .*\n", "", LEAST)
    assert complaint(tmp_path, text).endswith(f"{key} is missing")


def test_no_roles_is_refused(tmp_path):
    assert complaint(tmp_path, LEAST.split("[roles", maxsplit=1)[0]) == "roles is missing"


def test_another_version_is_refused(tmp_path):
    assert "version = 2: allowed is 1" in complaint(tmp_path, LEAST.replace("version = 1", "version = 2"))


def test_what_is_no_toml_is_one_line(tmp_path):
    assert "not valid TOML" in complaint(tmp_path, "version = \n[")


def test_missing_file_is_one_line(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_long_value_is_not_repeated(tmp_path):
    assert len(complaint(tmp_path, LEAST + f"[hub]\nlanguage = '{'x' * 5000}'\n")) < 120


def test_relative_paths_count_from_the_repository(tmp_path):
    assert load(write(tmp_path, LEAST)).homes.root == module.ROOT / ".state" / "homes"


def test_named_file_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(tmp_path / "own.toml"))
    assert locate() == tmp_path / "own.toml"


def test_demo_settings_are_last(tmp_path, monkeypatch):
    monkeypatch.delenv("GPUCAMPUS_SETTINGS", raising=False)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("GPUCAMPUS_STATE", str(tmp_path / "elsewhere"))
    assert locate() == tmp_path / "elsewhere" / "settings.toml"
    (tmp_path / "settings.toml").touch()
    assert locate() == tmp_path / "settings.toml"


def test_roles_become_entitlements_in_the_order_of_the_file():
    student, researcher = load(EXAMPLE).entitlement_roles()
    assert (student.name, student.groups, researcher.name) == ("student", ("students",), "researcher")
    assert student.entitlement.role == "student"
    assert student.entitlement.modes == (Mode.EXCLUSIVE, Mode.NONE)
    assert (student.entitlement.memory_bytes, student.entitlement.default_memory_bytes) == (8 * GIB, 4 * GIB)
    assert (student.entitlement.max_runtime_s, student.entitlement.idle_s) == (8 * 3600, 3600)
    assert (researcher.entitlement.gpus, researcher.entitlement.cpus) == (2, 8.0)


def test_container_defaults_are_the_containers_section():
    defaults = load(EXAMPLE).container_defaults()
    section = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))["containers"]
    assert (defaults.pids, defaults.tmp_inodes, defaults.nofile) == (
        section["pids"],
        section["tmp_inodes"],
        section["nofile"],
    )
    assert (defaults.shm_bytes, defaults.tmp_bytes) == (GIB, GIB)
