"""The check at a container's start: what is found, how it is said, and that nothing is started on it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucampus_tools import health, nvml, variant
from spawner.core import health as hub_side
from tests.images.tools.test_variant import CU126

ONE, TWO = "GPU-1", "GPU-2"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """An image that holds what it says, unless the test says otherwise."""

    def made(**said: object) -> Path:
        file = tmp_path / "variant.json"
        file.write_text(json.dumps({**CU126, "python": PYTHON, **said}))
        return file

    monkeypatch.setattr(variant, "installed_torch", lambda: "2.7.1")
    monkeypatch.setattr(variant, "installed_cuda", lambda: "12.6")
    return made


def seen(*uuids: str, driver: str = "550.54.14") -> Callable[[], nvml.Seen]:
    return lambda: nvml.Seen(driver=driver, uuids=uuids)


@pytest.mark.parametrize(
    ("leased", "ask"),
    [
        pytest.param(f"{ONE},{TWO}", seen(TWO, ONE), id="the-leased-ones"),
        pytest.param("", seen(), id="none-leased-none-there"),
        pytest.param("", lambda: None, id="none-leased-no-driver"),
        pytest.param(None, seen(ONE), id="started-by-hand"),
        pytest.param(None, lambda: None, id="started-by-hand-without"),
    ],
)
def test_what_is_as_it_was_leased_is_healthy(image, tmp_path, leased, ask) -> None:
    assert health.check(leased, image(), ask=ask, dev=tmp_path) is None


@pytest.mark.parametrize(
    ("leased", "ask", "expected"),
    [
        pytest.param(
            f"{ONE},{TWO}", seen(ONE), {"code": "gpu-missing", "missing": 1, "leased": 2, "gpus": TWO}, id="missing"
        ),
        pytest.param(ONE, seen(ONE, TWO), {"code": "gpu-extra", "others": 1, "gpus": TWO}, id="others"),
        pytest.param("", seen(ONE), {"code": "gpu-extra", "others": 1, "gpus": ONE}, id="others-without-a-lease"),
        pytest.param(
            ONE, seen(ONE, driver="520.61"), {"code": "driver-old", "driver": "520.61", "needed": "525.60.13"}, id="old"
        ),
    ],
)
def test_gpus_and_driver_that_are_not_as_leased_are_named(image, tmp_path, leased, ask, expected) -> None:
    assert health.check(leased, image(), ask=ask, dev=tmp_path) == expected


def test_a_lease_without_a_driver_in_the_container_is_found(image) -> None:
    found = health.check(ONE, image(), ask=lambda: None)
    assert found is not None
    assert found["code"] == "driver-silent"


def test_device_nodes_without_a_library_are_found_where_nothing_is_leased(image, tmp_path) -> None:
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    found = health.check("", image(), ask=lambda: None, dev=tmp_path)
    assert found == {"code": "gpu-extra", "others": 1, "gpus": "nvidia0"}


@pytest.mark.parametrize(
    ("said", "part"),
    [({"torch": "2.8.0"}, "PyTorch"), ({"cuda": "13.0"}, "CUDA"), ({"python": "3.99"}, "Python")],
    ids=["torch", "cuda", "python"],
)
def test_an_image_that_holds_something_else_is_found_before_any_driver_is_asked(image, said, part) -> None:
    def ask() -> nvml.Seen:
        raise AssertionError("asked")

    found = health.check(ONE, image(**said), ask=ask)
    assert found is not None
    assert (found["code"], found["part"], found["expected"]) == ("version", part, next(iter(said.values())))


def test_a_variant_without_cuda_is_never_asked_for_gpus(image) -> None:
    def ask() -> nvml.Seen:
        raise AssertionError("asked")

    assert health.check(ONE, image(cuda="", min_driver=""), ask=ask) is None


def test_an_image_that_says_nothing_of_itself_is_found(tmp_path) -> None:
    found = health.check("", tmp_path / "none")
    assert found is not None
    assert found["code"] == "broken"


def test_a_driver_that_never_answers_is_given_up() -> None:
    reading, _writing = os.pipe()  # never written to
    with pytest.raises(nvml.DriverError, match=r"within 0\.2 s"):
        health.look_within(0.2, lambda: nvml.Seen(driver=str(os.read(reading, 1)), uuids=()))


def test_a_library_that_ends_its_process_is_said() -> None:
    with pytest.raises(nvml.DriverError, match="ended the process"):
        health.look_within(5, lambda: os._exit(1))


def test_what_the_other_process_saw_comes_back_whole() -> None:
    assert health.look_within(5, seen(ONE, TWO)) == seen(ONE, TWO)()
    assert health.look_within(5, lambda: None) is None


def run(*command: str, file: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program as a container runs it, on another image's file."""
    program = (
        "import sys; sys.path.insert(0, 'images/tools'); from pathlib import Path\n"
        "from gpucampus_tools import health, variant\n"
        f"variant.FILE = Path({str(file)!r}); sys.exit(health.main())"
    )
    arguments = [sys.executable, "-IS", "-c", program, *command]
    return subprocess.run(arguments, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_a_healthy_container_becomes_the_server(tmp_path: Path) -> None:
    file = tmp_path / "variant.json"
    file.write_text(json.dumps({"variant": "plain", "python": PYTHON, "architectures": []}))
    done = run("sh", "-c", "echo $0 $1; exit 7", "a", "b c", file=file)
    assert (done.returncode, done.stdout, done.stderr) == (7, "a b c\n", "")
    assert run("no-such-program", file=file).returncode == 127
    assert json.loads(run(file=file).stdout)["healthy"] is True


def test_an_unhealthy_one_starts_nothing_and_says_why_in_a_line_that_the_hub_reads(tmp_path: Path) -> None:
    file = tmp_path / "variant.json"
    file.write_text(json.dumps({**CU126, "python": "3.99"}))
    done = run("echo", "started", file=file)
    assert (done.returncode, done.stdout) == (hub_side.STATUS, "")
    found = hub_side.finding_of(done.stderr)
    assert found is not None
    assert found[0] is hub_side.HealthCode.VERSION
    assert dict(found[1]) == {"part": "Python", "expected": "3.99", "found": PYTHON}


def test_the_check_loads_no_pytorch_and_nothing_of_the_environments_packages(tmp_path: Path) -> None:
    program = "import sys; sys.path.insert(0, 'images/tools'); import gpucampus_tools.health; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-IS", "-c", program], capture_output=True, text=True, check=True)
    assert {"torch", "site", "pynvml", "numpy"}.isdisjoint(done.stdout.split())
