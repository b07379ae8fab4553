"""A person's own packages: behind the image's, in kernels and terminals, and never in the server."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpucampus_tools import own_packages
from gpucampus_tools.visible import VARIABLE

IMAGES = Path(__file__).resolve().parents[3] / "images"
VENV = IMAGES / "tools/venv"
SITE_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that stands for the image's, with a package in it and the project's .pth file."""
    made = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    (made / SITE_PACKAGES / "shadowed.py").write_text("whose = 'the image'\n")
    (made / SITE_PACKAGES / "known-1.2+cpu.dist-info").mkdir()
    shutil.copytree(IMAGES / "tools/gpucampus_tools", made / SITE_PACKAGES / "gpucampus_tools")
    shutil.copy(VENV / "lib/python3.11/site-packages/zz_gpucampus.pth", made / SITE_PACKAGES)
    return made


@pytest.fixture
def own(tmp_path: Path, image: Path) -> Path:
    """Own packages: one that nobody else has, one that the image has, too, and a .pth file that fails."""
    place = tmp_path / "own"
    python = Path(sys.base_prefix, "bin", Path(SITE_PACKAGES).parent.name)
    own_packages.prepare(place, python=python, image=image / SITE_PACKAGES)
    (place / SITE_PACKAGES / "mine.py").write_text("")
    (place / SITE_PACKAGES / "shadowed.py").write_text("whose = 'the person'\n")
    (place / SITE_PACKAGES / "broken.pth").write_text("import nothing_of_this_name\n")
    return place


def said(python: Path, program: str, *options: str, own: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {VARIABLE: str(own)} if own else {}
    command = [str(python), *options, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


FOUND = "import importlib.util; print(importlib.util.find_spec('mine') is not None)"


def test_kernels_find_own_packages(image: Path, own: Path):
    assert said(image / "bin/python", FOUND, own=own) == "True"


def test_the_first_package_needs_no_restart(image: Path, tmp_path: Path):
    file = tmp_path / "none/yet" / SITE_PACKAGES / "late.py"
    program = f"open({str(file)!r}, 'w').close(); import late; print(late.__file__)"
    assert said(image / "bin/python", program, own=tmp_path / "none/yet") == str(file)


def test_a_home_that_cannot_be_written_keeps_no_kernel_from_starting(image: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert said(image / "bin/python", "print(1)", own=tmp_path / "file/below") == "1"


@pytest.mark.parametrize("option", ["-I", "-s"])
def test_isolated_programs_do_not_find_them(image: Path, own: Path, option: str):
    assert said(image / "bin/python", FOUND, option, own=own) == "False"


def test_the_server_does_not_find_them(image: Path):
    assert said(image / "bin/python", FOUND) == "False"


def test_a_package_of_the_image_goes_before_one_of_the_same_name(image: Path, own: Path):
    program = "import shadowed; print(shadowed.whose)"
    assert said(image / "bin/python", program, own=own) == "the image"
    assert said(own / "bin/python", program) == "the image", "in programs that a package brings"


def test_pip_sees_the_image_from_the_environment_in_the_home(image: Path, own: Path):
    program = "import sys; print(sys.prefix, *sys.path, sep='\\n')"
    prefix, *path = said(own / "bin/python", program).splitlines()
    assert prefix == str(own)
    assert path.index(str(image / SITE_PACKAGES)) < path.index(str(own / SITE_PACKAGES))


def test_pip_is_held_to_the_versions_of_the_image(own: Path):
    assert (own / "constraints.txt").read_text() == "known==1.2+cpu\n"


def test_constraints_are_read_from_names_of_folders():
    names = ["typing_extensions-4.16.0.dist-info", "typing_extensions.py", "a-b-1.0.dist-info", "_x", "torch"]
    assert own_packages.constraints(names) == "a-b==1.0\ntyping_extensions==4.16.0\n"


def test_what_is_right_is_not_written_again(own: Path, image: Path):
    files = [own / "pyvenv.cfg", own / "constraints.txt", own / SITE_PACKAGES / "00-image-packages.pth"]
    for file in files:
        os.utime(file, (1, 1))
    own_packages.prepare(own, python=Path(sys.executable), image=image / SITE_PACKAGES)
    assert [file.stat().st_mtime for file in files[1:]] == [1, 1]


def test_a_python_that_has_gone_is_replaced(own: Path, image: Path):
    (own / "bin/python").unlink()
    (own / "bin/python").symlink_to("/nowhere/python3.9")
    own_packages.prepare(own, python=Path(sys.executable), image=image / SITE_PACKAGES)
    assert (own / "bin/python").resolve() == Path(sys.executable).resolve()


def test_each_variant_has_a_folder_of_its_own(tmp_path: Path):
    described = tmp_path / "variant.json"
    described.write_text(json.dumps({"variant": "cu126"}))
    home = {"HOME": "/home/anna"}
    assert own_packages.folder(home, described) == Path("/home/anna/.local/share/gpucampus/cu126")
    assert own_packages.folder(home | {VARIABLE: "/x"}, described) == Path("/x")


def run(script: str, environment: dict[str, str]) -> str:
    return subprocess.run(["sh", "-c", script], check=True, env=environment, capture_output=True, text=True).stdout


def test_kernel_terminal_and_pip_mean_the_same_folder(tmp_path: Path):
    kernel = json.loads((VENV / "share/jupyter/kernels/python3/kernel.json").read_text())
    place = kernel["env"][VARIABLE].replace("${HOME}", "/h").replace("${GPUCAMPUS_VARIANT}", "cpu")
    shell = f". {IMAGES}/tools/etc/profile.d/gpucampus.sh; echo ${VARIABLE}; echo $PATH"
    environment = {"HOME": "/h", "GPUCAMPUS_VARIANT": "cpu", "PATH": "/opt/venv/bin:/bin"}
    terminal = run(f"{shell}; {shell}", environment)
    (tmp_path / "variant.json").write_text('{"variant": "cpu"}')
    assert terminal.splitlines() == [place, f"/opt/venv/bin:/bin:{place}/bin"] * 2
    assert own_packages.folder({"HOME": "/h"}, tmp_path / "variant.json") == Path(place)


def test_a_login_shell_finds_the_programs_of_the_image_again():
    environment = {"HOME": "/h", "GPUCAMPUS_VARIANT": "cpu", "PATH": "/usr/bin:/bin"}
    path = run(f". {IMAGES}/tools/etc/profile.d/gpucampus.sh; echo $PATH", environment).strip()
    assert path == "/opt/venv/bin:/usr/bin:/bin:/h/.local/share/gpucampus/cpu/bin"


@pytest.mark.parametrize("program", sorted((IMAGES / "tools/bin").iterdir()), ids=lambda path: path.name)
def test_no_folder_of_a_person_can_change_what_a_program_imports(program: Path):
    assert program.read_text().startswith(("#!/opt/venv/bin/python -I\n", "#!/opt/venv/bin/python -IS\n"))
