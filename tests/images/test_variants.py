"""What is in the built images, looked at from inside a container as a person gets it: no root, a root file system that
cannot be written, no network."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.image_recipe import read_catalog

pytestmark = pytest.mark.images

PERSON = "200000:200000"
ALLOWED_MB = {"cpu": 2000, "plain": 1000}  # on the disk; compressed, as a registry has it, about a third


@pytest.fixture(scope="module", params=[variant.name for variant in read_catalog().usual])
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def image(engine: Any, variant: str) -> Any:
    return engine.client.images.get(engine.build_variant(variant))


@pytest.fixture(scope="module")
def inside(engine: Any, image: Any) -> Iterator[Any]:
    """A running container, and a way to run a command in it."""
    options = {
        "user": PERSON,
        "read_only": True,
        "network_mode": "none",
        "init": True,
        "tmpfs": {"/tmp": "", "/home/person": "uid=200000,gid=200000"},
        "environment": {"HOME": "/home/person"},
        "working_dir": "/home/person",
    }
    with engine.container(image.id, ["sleep", "infinity"], **options) as container:
        container.start()

        def run(*command: str) -> str:
            return str(engine.output_in(container, list(command)))

        yield run


def test_the_image_says_whose_it_is_and_what_it_was_made_of(image: Any, variant: str):
    assert image.labels["gpucampus.project"] == "gpucampus"
    assert image.labels["gpucampus.variant"] == variant
    assert len(image.labels["gpucampus.inputs"]) == 64


def test_building_what_is_current_builds_nothing(engine: Any, image: Any, variant: str):
    assert engine.build_variant(variant) == image.id


def test_no_layer_holds_what_only_the_build_needed(image: Any):
    steps = [(str(step["CreatedBy"]), int(step["Size"])) for step in image.history()]
    assert [size for text, size in steps if "COPY" in text or "ADD" in text] == []
    assert sum("install-layer" in text for text, _ in steps) == 4, (
        "a layer for each of the parts that change at different times"
    )


def test_the_image_is_no_larger_than_promised(image: Any, variant: str):
    assert image.attrs["Size"] / 1e6 < ALLOWED_MB[variant]


def test_the_installed_packages_agree_with_each_other(inside: Any):
    assert "No broken requirements" in inside("pip", "check")


def test_nobody_but_root_can_change_the_environment(inside: Any):
    assert inside("find", "/opt/venv", "-not", "-user", "root", "-o", "-perm", "/022", "-not", "-type", "l") == ""


def test_no_caches_and_no_histories_are_in_the_image(inside: Any):
    found = inside(
        "sh",
        "-c",
        "ls -A /var/lib/apt/lists /root/.cache /root/.bash_history /tmp/* /opt/.uv /layer /gpucampus-build 2>&- || :",
    )
    assert [line for line in found.splitlines() if line and not line.endswith(":")] == []


def test_starting_a_server_compiles_no_grammar(inside: Any):
    program = "import sys, jupyterhub.singleuser, jupyter_server.serverapp; print('lark' in sys.modules)"
    assert inside("python", "-c", program).strip() == "False"


def test_addresses_are_still_checked(inside: Any):
    program = """
import json, jsonschema
checker = jsonschema.FormatChecker()
print(json.dumps([checker.conforms(text, "iri") for text in ("http://example.org/\\u00fc", "no scheme", "http://[::1")]))
"""
    assert json.loads(inside("python", "-c", program)) == [True, False, False]


def test_the_start_finds_its_bytecode(inside: Any):
    program = """
import sys, jupyterhub.singleuser, jupyter_server.serverapp
from pathlib import Path
files = [module.__cached__ for module in list(sys.modules.values()) if getattr(module, "__cached__", None)]
print([name for name in files if "/opt/venv/" in name and not Path(name).exists()])
"""
    assert inside("python", "-c", program).strip() == "[]"


def test_pytorch_computes_on_the_processor(inside: Any, variant: str):
    if variant != "cpu":
        return
    program = (
        "import torch; print(torch.__version__, torch.version.cuda, (torch.ones(2, 2) @ torch.ones(2, 2)).sum().item())"
    )
    assert inside("python", "-c", program).split() == ["2.13.0+cpu", "None", "8.0"]


def test_a_terminal_has_suggestions_and_colours_and_asks_no_questions(inside: Any):
    assert inside("sh", "-c", "echo $SHELL").strip() == "/bin/zsh"
    loaded = "whence -w _zsh_autosuggest_start _zsh_highlight"
    assert inside("zsh", "-ic", loaded).splitlines() == ["_zsh_autosuggest_start: function", "_zsh_highlight: function"]


def test_git_and_nbstripout_are_there(inside: Any):
    assert inside("git", "--version").startswith("git version")
    assert inside("nbstripout", "--version").strip()


def test_jupyterlab_answers_on_a_root_that_cannot_be_written(inside: Any):
    inside("sh", "-c", "jupyter lab --no-browser --port=8888 >/tmp/log 2>&1 &")
    # one command that waits, since each that is started in a container is a chance for the engine to lose its output
    patiently = ("--silent", "--retry", "60", "--retry-connrefused", "--retry-delay", "1", "--retry-max-time", "60")
    answer = inside("curl", *patiently, "http://127.0.0.1:8888/api")
    assert "version" in json.loads(answer)
    assert "Read-only file system" not in inside("cat", "/tmp/log")
