"""What `make run` makes below the state folder before it starts anything."""

import json
import stat
from pathlib import Path

import pytest

from deploy.demo import setup
from deploy.demo.accounts import ensure_accounts
from deploy.demo.gpus import make
from deploy.demo.machine import GPUKind, MachineError, gpu_kind
from deploy.demo.setup import HEADER, DemoError, Ports, prepare, settings_text
from spawner.core.model import Mode
from spawner.settings import load


@pytest.fixture(autouse=True)
def plain_nodes(plain_gpus: make.SimulatedGPUs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take GPUs that need no root, on a machine that has none."""
    monkeypatch.setattr(setup, "build", lambda folder: plain_gpus)
    monkeypatch.setattr(setup, "gpu_kind", lambda: GPUKind.SIMULATED)
    for name in ("GPUCAMPUS_PORT", "GPUCAMPUS_SUBNET"):
        monkeypatch.delenv(name, raising=False)


def contents(state: Path) -> dict[str, str]:
    return {str(path.relative_to(state)): path.read_text() for path in state.rglob("*") if path.is_file()}


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    prepare(tmp_path)
    before = contents(tmp_path)
    prepare(tmp_path)
    assert contents(tmp_path) == before


def test_secrets_and_accounts_are_for_their_owner_only(tmp_path: Path) -> None:
    prepare(tmp_path)
    private = [path for folder in ("secrets", "demo") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert len(private) == 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in [*private, tmp_path / "settings.toml"]} == {0o600}
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


def test_the_settings_are_the_ones_the_demo_promises(tmp_path: Path) -> None:
    demo = prepare(tmp_path)
    settings = load(demo.settings)
    student, teacher, researcher = (settings.roles[name] for name in ("student", "teacher", "researcher"))
    assert (student.gpus, student.memory, student.default_memory, student.cpus) == (1, 4 << 30, 1 << 30, 1)
    assert student.modes == (Mode.EXCLUSIVE, Mode.MIG, Mode.NONE)
    assert teacher.modes == (Mode.EXCLUSIVE, Mode.MIG, Mode.SHARED, Mode.NONE)
    assert researcher.modes == (Mode.EXCLUSIVE, Mode.SHARED, Mode.NONE)
    assert settings.gpus.shares_per_gpu == 2
    assert (researcher.gpus, researcher.memory) == (2, 16 << 30)
    assert settings.hub.public_url == "http://localhost:8000"
    assert settings.hub.hub_port == 8081
    assert settings.gpus.simulated
    assert demo.simulated


def test_passwords_are_hashed_where_the_provider_reads_them(tmp_path: Path) -> None:
    demo = prepare(tmp_path)
    users = (tmp_path / "demo/users.json").read_text(encoding="utf-8")
    assert not [password for password in demo.passwords.values() if password in users]
    assert len(set(demo.passwords.values())) == 4


def test_a_changed_password_is_taken_over_and_changed_groups_stay(tmp_path: Path) -> None:
    ensure_accounts(tmp_path)
    passwords, users = tmp_path / "accounts.json", tmp_path / "users.json"
    passwords.write_text(passwords.read_text().replace(ensure_accounts(tmp_path)["student"], "correct horse"))
    people = json.loads(users.read_text())
    old = people["student"]["password"]
    people["student"]["groups"] = ["teachers"]
    users.write_text(json.dumps(people))
    assert ensure_accounts(tmp_path)["student"] == "correct horse"
    people = json.loads(users.read_text())
    assert people["student"]["groups"] == ["teachers"]
    assert people["student"]["password"] != old


def test_settings_that_somebody_made_their_own_stay(tmp_path: Path) -> None:
    prepare(tmp_path)
    path = tmp_path / "settings.toml"
    own = path.read_text().replace(HEADER, "# mine").replace('memory = "4G"', 'memory = "3G"')
    path.write_text(own)
    prepare(tmp_path)
    assert path.read_text() == own


def test_our_own_settings_are_brought_up_to_date(tmp_path: Path) -> None:
    prepare(tmp_path)
    path = tmp_path / "settings.toml"
    right = path.read_text()
    path.write_text(right.replace('memory = "4G"', 'memory = "3G"'))
    prepare(tmp_path)
    assert path.read_text() == right


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        pytest.param("hub.public_url", "http://localhost:8000", "https://hub.example.org", id="hub"),
        pytest.param("sign_in.issuer", "http://127.0.0.1:8010", "http://192.0.2.1:8010", id="provider"),
    ],
)
def test_an_address_that_others_reach_is_refused(tmp_path: Path, key: str, old: str, new: str) -> None:
    prepare(tmp_path)
    path = tmp_path / "settings.toml"
    path.write_text(path.read_text().replace(HEADER, "# mine").replace(old, new))
    with pytest.raises(DemoError, match=rf"{key} = '{new}' can be reached by others"):
        prepare(tmp_path)


def test_a_second_hub_shares_no_port_name_or_network_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ports.from_environment()
    monkeypatch.setenv("GPUCAMPUS_PORT", "18500")
    monkeypatch.setenv("GPUCAMPUS_SUBNET", "172.31.0.0/20")
    second = Ports.from_environment()
    for name in ("public", "proxy_api", "provider", "hub", "name", "bridge", "subnet", "url", "issuer"):
        assert getattr(first, name) != getattr(second, name)
    assert len(second.bridge) <= 15


@pytest.mark.parametrize(
    ("name", "value"), [("GPUCAMPUS_PORT", "http"), ("GPUCAMPUS_PORT", "65535"), ("GPUCAMPUS_SUBNET", "10.0.0.1/8")]
)
def test_a_wrong_port_or_subnet_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DemoError, match=f"{name} = '{value}': allowed is"):
        Ports.from_environment()


def machine(root: Path, *, bus: bool = False, driver: bool = False, hook: bool = False) -> Path:
    """A machine's files, as far as GPUs are told by them."""
    device = root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n" if bus else "0x8086\n")
    (device / "class").write_text("0x030000\n")
    if driver:
        (root / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (root / "bin").mkdir()
    if hook:
        program = root / "bin/nvidia-container-runtime-hook"
        program.touch(mode=0o755)
    return root


def test_a_machine_without_a_gpu_is_simulated(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert gpu_kind(root, str(root / "bin")) is GPUKind.SIMULATED


def test_a_gpu_with_driver_and_toolkit_is_real(tmp_path: Path) -> None:
    root = machine(tmp_path, bus=True, driver=True, hook=True)
    assert gpu_kind(root, str(root / "bin")) is GPUKind.REAL


@pytest.mark.parametrize(
    ("driver", "lacks"),
    [
        pytest.param(True, "no NVIDIA Container Toolkit", id="no-toolkit"),
        pytest.param(False, "driver is not loaded", id="no-driver"),
    ],
)
def test_a_real_gpu_that_cannot_be_used_is_never_simulated(tmp_path: Path, driver: bool, lacks: str) -> None:
    root = machine(tmp_path, bus=True, driver=driver)
    with pytest.raises(MachineError, match=lacks):
        gpu_kind(root, str(root / "bin"))


def test_a_real_gpu_goes_by_nvidias_hook_and_is_not_called_simulated(tmp_path: Path) -> None:
    prepare(tmp_path)
    path = tmp_path / "settings.toml"
    path.write_text(settings_text(tmp_path, Ports(), None), encoding="utf-8")
    gpus = load(path).gpus
    assert (gpus.injection, gpus.simulated, gpus.files, gpus.shares_per_gpu) == ("nvidia", False, {}, 2)
