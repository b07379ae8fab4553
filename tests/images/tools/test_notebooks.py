"""Git in the images: notebooks without outputs, and nothing that would run other people's code."""

import os
import subprocess
import sys
from pathlib import Path

ETC = Path(__file__).resolve().parents[3] / "images/tools/etc"
CONFLICT = '{"cells": [\n<<<<<<< HEAD\n "mine"\n=======\n "theirs"\n>>>>>>> other\n]}'


def git(*arguments: str) -> str:
    environment = os.environ | {"GIT_CONFIG_SYSTEM": str(ETC / "gitconfig"), "GIT_CONFIG_GLOBAL": "/dev/null"}
    ran = subprocess.run(["git", *arguments], check=False, env=environment, capture_output=True, text=True)
    return ran.stdout.strip()


def cleaned(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ETC.parent)}
    command = [sys.executable, "-m", "gpucampus_tools.notebooks", *arguments]
    return subprocess.run(command, check=False, env=environment, input=text, capture_output=True, text=True)


def test_no_folder_of_somebody_else_is_trusted():
    assert git("config", "--system", "--get-all", "safe.directory") == ""
    assert "safe.directory =" not in (ETC / "gitconfig").read_text()


def test_the_filter_is_asked_for_and_runs_isolated_by_the_images_own_python():
    for name in ("filter.nbstripout.clean", "diff.ipynb.textconv"):
        assert git("config", "--system", name).startswith("/opt/venv/bin/python -I -m gpucampus_tools.")
    assert git("config", "--system", "filter.nbstripout.required") == "true"


def test_a_persons_own_attributes_file_replaces_nothing_of_the_image():
    assert git("config", "--system", "core.attributesFile") == ""
    assert "*.ipynb filter=nbstripout diff=ipynb" in (ETC / "gitattributes").read_text()


def test_a_notebook_with_the_marks_of_a_merge_passes_as_it_is(tmp_path: Path):
    (tmp_path / "a.ipynb").write_text(CONFLICT)
    for ran in (cleaned(CONFLICT), cleaned("", str(tmp_path / "a.ipynb"))):
        assert (ran.returncode, ran.stdout) == (0, CONFLICT)
        assert "Not a notebook at the moment" in ran.stderr


def test_without_nbstripout_nothing_passes_as_clean():
    ran = cleaned('{"cells": []}')
    assert ran.returncode != 0
    assert ran.stdout == ""
