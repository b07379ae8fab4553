"""What the images are made of, read from their recipes: no engine is needed."""

import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from deploy.image_recipe import IMAGES, LAYERS, ROOT, layers, lock_of, read_catalog
from deploy.wheels import parse_lock

VARIANTS = [variant.name for variant in read_catalog().variants]


def versions(lock: Path) -> dict[str, str]:
    return {pin.name: pin.version for pin in parse_lock(lock.read_text())}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_server_has_the_same_jupyterhub_as_the_hub(variant: str):
    assert versions(lock_of(variant))["jupyterhub"] == versions(ROOT / "requirements.lock")["jupyterhub"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_has_the_pytorch_that_the_catalog_names(variant: str):
    chosen = read_catalog().get(variant)
    assert chosen is not None
    assert versions(lock_of(variant)).get("torch", "").partition("+")[0] == chosen.torch


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_package_of_a_lock_is_in_one_layer_and_what_pytorch_needs_is_below_jupyterlab(variant: str):
    lock = lock_of(variant).read_text()
    found = {layer: {pin.name for pin in pins} for layer, pins in layers(lock).items()}
    assert tuple(found) == LAYERS
    assert sorted(name for names in found.values() for name in names) == sorted(versions(lock_of(variant)))
    assert {"jupyterlab", "jupyterhub", "nbgitpuller", "tqdm"} <= found["jupyter"]
    assert found["libraries"] >= {"matplotlib"} | ({"scipy", "pandas"} if variant != "plain" else set())
    assert ("torch" in found["torch"]) == (variant != "plain")
    assert bool(found["nvidia"]) == variant.startswith("cu")
    assert all(name.startswith(("nvidia-", "cuda-", "triton")) for name in found["nvidia"])


@pytest.mark.parametrize("variant", [name for name in VARIANTS if not name.startswith("cu")])
def test_a_variant_without_cuda_has_no_package_of_nvidia_but_the_reader_of_its_driver(variant: str):
    assert [name for name in versions(lock_of(variant)) if name.startswith(("nvidia-", "cuda-", "triton"))] in (
        ["nvidia-ml-py"],
        [],
    )


def test_the_package_list_is_sorted_and_names_each_package_once():
    lines = (IMAGES / "base/packages.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert packages == sorted(set(packages))
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package) for package in packages)


@pytest.fixture
def lazy_package(tmp_path: Path) -> Path:
    """A folder with the address package as the images have it."""
    spec = find_spec("rfc3987_syntax")
    assert spec is not None
    assert spec.origin is not None
    package = tmp_path / "rfc3987_syntax"
    shutil.copytree(Path(spec.origin).parent, package)
    shutil.copy(IMAGES / "torch/lazy_rfc3987.py", package / "__init__.py")
    return tmp_path


def printed(folder: Path, program: str) -> list[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_importing_the_format_checker_compiles_no_grammar(lazy_package: Path):
    program = "import jsonschema, rfc3987_syntax; print('lark' in sys.modules, rfc3987_syntax.__file__)"
    assert printed(lazy_package, program) == ["False", str(lazy_package / "rfc3987_syntax/__init__.py")]


ADDRESSES = ["http://example.org/ü?q#f", "mailto:a@b", "no scheme", "http://[::1", "//host/path", ""]


def test_addresses_are_judged_as_by_the_package_itself(lazy_package: Path, tmp_path: Path):
    program = f"""
import rfc3987_syntax
for address in {ADDRESSES!r}:
    print(rfc3987_syntax.is_valid_syntax("iri", address), rfc3987_syntax.is_valid_syntax("iri_reference", address))
print(rfc3987_syntax.is_valid_syntax_port("80"), rfc3987_syntax.is_valid_syntax_port("x"))
"""
    (tmp_path / "empty").mkdir()
    lazy, eager = printed(lazy_package, program), printed(tmp_path / "empty", program)
    assert lazy == eager
    assert {"True", "False"} <= set(lazy)


SAID: dict[str, object] = {"variant": "cu126", "torch": "2.7.1", "cuda": "12.6", "architectures": [80, 90]}


@pytest.mark.parametrize(
    ("version", "cuda", "flags", "wrong"),
    [
        pytest.param("2.7.1+cu126", "12.6", "sm_80 sm_90 compute_90", [], id="as-the-catalog-says"),
        pytest.param("2.7.1+cpu", None, None, ["cuda", "architectures"], id="a-build-for-the-cpu"),
        pytest.param("2.8.0", "12.8", "sm_80 sm_90", ["torch", "cuda"], id="another-version"),
        pytest.param("2.7.1", "12.6", "sm_80", ["architectures"], id="code-for-fewer-gpus"),
    ],
)
def test_the_build_compares_pytorch_itself_with_the_catalog(
    version: str, cuda: str | None, flags: str | None, wrong: list[str]
):
    check = runpy.run_path(str(IMAGES / "torch/install_own.py"))["check_torch"]
    assert [line.partition(" =")[0] for line in check(SAID, version, cuda, flags)] == wrong
