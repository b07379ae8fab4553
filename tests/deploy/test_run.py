"""What deploy/run refuses before Python is there, with programs that answer as another machine's would."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout that nothing has been installed in."""
    folder = tmp_path / "checkout"
    for part in ("deploy", "spawner"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for file in ("pyproject.toml", "requirements.lock"):
        shutil.copyfile(ROOT / file, folder / file)
    return folder


def refusal(copy: Path, programs: dict[str, str]) -> str:
    """What `deploy/run up` says where these programs answer; it must end before it has installed anything."""
    shims = copy / "shims"
    shims.mkdir()
    for name, script in ({"id": "echo 0", "apt-get": "touch $0.was-run", "dpkg": ":"} | programs).items():
        (shims / name).write_text(f"#!/bin/sh\n{script}\n")
        (shims / name).chmod(0o755)
    env = {"PATH": f"{shims}:/usr/bin:/bin", "HOME": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([str(copy / "deploy/run"), "up"], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (shims / "apt-get.was-run").exists()
    assert not (copy / ".venv").exists()
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        pytest.param({"id": "echo 1000"}, "This needs root: .* Run it with sudo", id="no-root"),
        pytest.param({"uname": "echo aarch64"}, "is arm64, .* locked for amd64", id="arm64"),
        pytest.param({"uname": "echo riscv64"}, "is riscv64; gpucampus runs on amd64", id="another"),
        pytest.param(
            {"python3": 'case $1 in --version) echo "Python 3.9.2" ;; *) exit 1 ;; esac'},
            r"Python 3\.9\.2 is too old: install Python 3\.11",
            id="old-python",
        ),
    ],
)
def test_a_machine_that_cannot_serve_is_refused_before_anything_is_installed(copy, programs, words):
    said = refusal(copy, programs)
    assert "\n" not in said, "one sentence"
    assert re.search(words, said)


def test_sources_that_cannot_be_reached_are_told_before_the_long_steps(copy):
    env = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    exports = " ".join(f"{name}={value}" for name, value in env.items())
    said = refusal(copy, {"python3": f'exec env PIP_CONFIG_FILE=/dev/null {exports} {python} "$@"'})
    for what in ("Python packages' index", "Node packages' registry", "Debian mirror"):
        assert f"The {what} cannot be reached" in said
    assert said.count("by the proxy http://127.0.0.1:9") == 3


def test_settings_that_name_no_certificates_end_the_run_in_one_sentence(copy):
    (copy / "settings.toml").write_text('version = 1\n[campus]\nca_file = "none.pem"\n')
    said = refusal(copy, {})
    assert said.startswith("campus.ca_file = ")
    assert "\n" not in said
