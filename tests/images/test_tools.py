"""What is put into every image, tried in the cpu image as a person has it: no root, no network, a root file system that
cannot be written, a home that stays."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.waiting import wait_until_sync
from tests.rig.wheel import make_wheel

pytestmark = pytest.mark.images

PERSON = 200000
OWN = "/home/person/.local/share/gpucampus"
# Runs cells in a kernel that a server starts, and prints what they print.
RUN_CELLS = """
import sys, nbformat, nbclient
cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[2:]]
nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name=sys.argv[1]).execute()
print("".join(output.get("text", "") for cell in cells for output in cell.outputs))
"""
NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "id": "abcd1234",
            "source": ["1 + 1"],
            "execution_count": 1,
            "metadata": {"tags": ["keep"]},
            "outputs": [{"output_type": "stream", "name": "stdout", "text": "SECRET"}],
        }
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}
PROGRAM = """
import torch
from gpucampus_tools import repro
def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
if __name__ == "__main__":
    torch.save({"state_dict": make().state_dict()}, "weights.pt")
    torch.save(make(), "whole.pt")
    repro.seed_everything(7)
    repro.record("r.json", data=["cells.py"])
"""


Start = Callable[..., AbstractContextManager[Callable[..., str]]]


@pytest.fixture
def start(engine: Any, tmp_path: Path) -> Start:
    """Starts a container over the same home, as a restart does, and gives a way to run commands in it."""
    image = engine.build_variant("cpu")
    home = tmp_path / "home"
    wheels = home / "wheels"
    wheels.mkdir(parents=True)
    make_wheel(wheels, "tiny", "1.0", {"tiny.py": "def main(): print('tiny 1')\n"}, script="tiny = tiny:main")
    make_wheel(wheels, "tiny", "2.0", {"tiny.py": "def main(): print('tiny 2')\n"}, script="tiny = tiny:main")
    make_wheel(wheels, "numpy", "99.0", {"numpy/__init__.py": "whose = 'own'\n"})
    # what a person's mistakes may look like: both stop whatever imports them
    bad = {"tornado/__init__.py": "raise RuntimeError\n", "bad.pth": "import nothing_of_this_name\n"}
    make_wheel(wheels, "bad", "1.0", bad)
    (home / "cells.py").write_text(RUN_CELLS)
    (home / "model.py").write_text(PROGRAM)
    (home / "notebook.json").write_text(json.dumps(NOTEBOOK))
    for path in (home, *home.rglob("*")):
        os.chown(path, PERSON, PERSON)

    @contextmanager
    def started(variant: str = "cpu") -> Iterator[Callable[..., str]]:
        options = {
            "user": f"{PERSON}:{PERSON}",
            "read_only": True,
            "network_mode": "none",
            "init": True,
            "tmpfs": {"/tmp": "exec"},
            "shm_size": "256m",
            "working_dir": "/home/person",
            "environment": {"HOME": "/home/person", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/home/person/wheels"}
            | ({} if variant == "cpu" else {"GPUCAMPUS_VARIANT": variant}),
            "volumes": [f"{home}:/home/person"],
        }
        with engine.container(image, ["sleep", "infinity"], **options) as container:
            container.start()
            yield lambda *command: str(engine.output_in(container, list(command)))

    return started


FIND = "import importlib.util; print('found' if importlib.util.find_spec('tiny') else 'not there')"


def test_what_pip_installs_stays_in_kernels_and_terminals_of_its_variant_alone(start: Start):
    with start() as run:
        said = run("python", "cells.py", "python3", "%pip install tiny==1.0", "import tiny; tiny.main()", "!tiny")
        assert said.count("tiny 1") == 2, "a module, and a program on PATH"
    with start() as run:
        assert "found" in run("python", "cells.py", "python3", FIND), "after a restart"
        assert run("zsh", "-c", f'python -c "{FIND}"; whence -p tiny').split() == ["found", f"{OWN}/cpu/bin/tiny"]
        assert run("python", "-c", FIND).strip() == "not there", "in the server"
        assert "tiny 2" in run("python", "cells.py", "python3", "!pip install -qU tiny; tiny")
        assert run("pip", "list", "--local", "--format=freeze").split() == ["tiny==2.0"]
    with start("cu126") as run:
        assert "not there" in run("python", "cells.py", "python3", FIND), "in another variant"
    with start() as run:
        run("pip", "uninstall", "--yes", "tiny")
        assert "not there" in run("python", "cells.py", "python3", FIND)


def test_a_package_of_the_image_is_neither_replaced_nor_hidden(start: Start):
    with start() as run:
        said = run("sh", "-c", "pip install numpy==99 2>&1; true")
        assert "The user requested (constraint) numpy==" in said
        run("pip", "install", "--no-deps", "--no-build-isolation", "--ignore-installed", "-c", "/dev/null", "bad")
        where = "import tornado; print(tornado.__file__)"
        assert "/opt/venv/lib" in run("python", "cells.py", "python3", where)


def test_a_broken_package_keeps_no_server_from_starting_and_its_terminal_is_zsh(start: Start):
    with start() as run:
        run("pip", "install", "--no-deps", "bad")
        run("sh", "-c", "mkdir -p .local/lib/python3.11 && cp -r wheels .local/lib/python3.11/site-packages")
        run("sh", "-c", f"cp {OWN}/cpu/lib/python3.11/site-packages/bad.pth .local/lib/python3.11/site-packages/")
        options = "--no-browser --port=8888 --IdentityProvider.token= --ServerApp.disable_check_xsrf=True"
        run("sh", "-c", f"jupyter lab {options} >/tmp/log 2>&1 &")
        asked = "curl --silent --max-time 2 -X POST http://127.0.0.1:8888/api/terminals || :"
        answer = wait_until_sync(lambda: run("sh", "-c", asked), timeout=90, what="JupyterLab opens a terminal")
        assert json.loads(answer)["name"] == "1"
        assert "/bin/zsh" in run("ps", "-eo", "args")
        assert "Error processing line" not in run("cat", "/tmp/log"), "the server never saw the packages"


def test_an_environment_of_ones_own_becomes_a_kernel(start: Start):
    with start() as run:
        said = run("gpucampus-kernel", "mine")
        assert "The kernel mine runs in /home/person/envs/mine" in said
        seen = "import importlib.util, sys; print(sys.prefix, importlib.util.find_spec('torch').origin)"
        cells = [seen, "%pip install -q numpy==99"]
        assert "/home/person/envs/mine /opt/venv/lib" in run("python", "cells.py", "mine", *cells)
        whose = "import numpy; print(numpy.whose)"
        assert run("python", "cells.py", "mine", whose).split()[-1] == "own", "it goes before the image's"


def test_git_commits_notebooks_without_outputs_and_keeps_ids(start: Start):
    person = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b"
    with start() as run:
        steps = "git init -q course && cd course && cp ../notebook.json a.ipynb && git add . && git commit -qm 1"
        run("sh", "-ec", f"{person}; {steps}")
        committed = json.loads(run("git", "-C", "course", "show", "HEAD:a.ipynb"))
        (cell,) = committed["cells"]
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        assert (cell["id"], cell["metadata"]) == ("abcd1234", {"tags": ["keep"]})
        assert "SECRET" in run("cat", "course/a.ipynb")
        assert run("git", "-C", "course", "status", "--porcelain") == ""
        assert run("sh", "-c", "git config --get-all safe.directory || echo none").strip() == "none"


def test_the_tools_for_training_work_with_the_images_pytorch(start: Start):
    with start() as run:
        run("python", "model.py")
        assert "holds more than weights" in run("sh", "-c", "model-loader whole.pt 2>&1; true")
        asked = ("model-loader", "weights.pt", "--model", "model:make", "--input", "4x8", "--compile")
        said = run("env", "TORCHDYNAMO_DISABLE=1", *asked)  # the compiler takes a minute; gpucampus-smoke runs it
        assert "2 tensors, 72 parameters" in said
        assert "0.001 MFLOP" in said
        assert "times as fast" in said
        assert "The ranks work together." in run("ddp-test", "--ranks", "2", "--folder", "logs")
        assert "the models of 2 ranks are equal" in run("cat", "logs/rank-1.log")
        assert json.loads(run("cat", "r.json"))["flags"]["deterministic algorithms"] is True
        assert run("repro", "check", "r.json").strip() == "Nothing differs."
        assert "trainlog" in run("trainlog", "--help")


def test_a_person_switches_pip_to_a_mirror_and_back(start: Start):
    with start() as run:
        run("use-mirror", "tuna")
        assert "pypi.tuna.tsinghua.edu.cn" in run("pip", "config", "get", "global.index-url")
        run("use-mirror", "official")
        assert run("pip", "config", "get", "global.index-url").strip() == "https://pypi.org/simple"
