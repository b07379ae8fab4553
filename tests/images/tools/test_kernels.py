"""Environments of one's own become kernels."""

import json
import string
import subprocess
import sys
from pathlib import Path

import pytest

from gpucampus_tools import kernels


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder that stands for the packages of the image."""
    packages = tmp_path / "image"
    packages.mkdir()
    (packages / "ipykernel.py").write_text("")
    return packages


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment that somebody has made."""
    place = tmp_path / "envs/mine"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    return place


def test_an_environment_sees_the_image_behind_its_own_packages(environment: Path, image: Path):
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "both.py").write_text("whose = 'own'")
    (image / "both.py").write_text("whose = 'image'")
    kernels.make_environment(environment, bare=False, image=image)
    program = "import both, ipykernel; print(both.whose)"
    ran = subprocess.run([environment / "bin/python", "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "own\n"


def test_a_bare_environment_must_have_ipykernel_itself(environment: Path, image: Path):
    with pytest.raises(kernels.KernelError, match="pip install ipykernel"):
        kernels.make_environment(environment, bare=True, image=image)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, image: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/thesis.tex").write_text("")
    with pytest.raises(kernels.KernelError, match="no virtual environment"):
        kernels.make_environment(tmp_path / "work", bare=False, image=image)


def test_the_kernel_starts_the_environments_own_python(tmp_path: Path):
    file = kernels.register("Mine-1", tmp_path / "envs/mine", {"HOME": str(tmp_path)})
    assert file == tmp_path / ".local/share/jupyter/kernels/mine-1/kernel.json"
    said = json.loads(file.read_text())
    assert said["argv"][0] == f"{tmp_path}/envs/mine/bin/python"
    assert said["display_name"] == "Mine-1"
    assert string.Template(said["env"]["PATH"]).substitute(PATH="/bin") == f"{tmp_path}/envs/mine/bin:/bin"


@pytest.mark.parametrize("name", ["python3", "Python3", "../x", "", "two words"])
def test_names_that_would_hide_the_images_kernel_are_refused(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        kernels.main([name])
    assert "cannot be a kernel's name" in capsys.readouterr().err
