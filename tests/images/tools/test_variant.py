"""What an image says of itself, and what of PyTorch is in it without importing it."""

import json
import sys
from pathlib import Path

import pytest

from gpucampus_tools import variant

CU126 = {
    "variant": "cu126",
    "torch": "2.7.1",
    "cuda": "12.6",
    "python": "3.11",
    "min_driver": "525.60.13",
    "architectures": [50, 90],
}


def test_the_file_of_an_image_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "variant.json"
    file.write_text(json.dumps(CU126))
    assert variant.read(file) == variant.Variant(
        name="cu126", torch="2.7.1", cuda="12.6", python="3.11", min_driver="525.60.13", architectures=(50, 90)
    )


def test_what_a_variant_does_not_have_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "variant.json"
    file.write_text(json.dumps({"variant": "plain", "torch": "", "cuda": None, "architectures": []}))
    assert variant.read(file) == variant.Variant(name="plain")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"variant": "x", "architectures": ["y"]}'])
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "variant.json"
    file.write_text(text)
    with pytest.raises(variant.VariantError) as refused:
        variant.read(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param("cuda: Optional[str] = '13.0'", "13.0", id="2.13"),
        pytest.param("cuda = '11.7'", "11.7", id="2.0"),
        pytest.param("cuda: Optional[str] = None", "", id="cpu"),
    ],
)
def test_the_version_of_cuda_is_read_and_torch_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, found: str
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "version.py").write_text(f"__all__ = ['cuda']\n__version__ = '2'\n{line}\nhip = None\n")
    (tmp_path / "torch-2.13.0+cpu.dist-info").mkdir()
    (tmp_path / "torch-2.13.0+cpu.dist-info/METADATA").write_text("Name: torch\nVersion: 2.13.0+cpu\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert variant.installed_cuda() == found
    assert variant.installed_torch() == "2.13.0"


def test_where_pytorch_is_not_installed_its_versions_are_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert (variant.installed_torch(), variant.installed_cuda()) == ("", "")
