"""The catalog names images exactly, and a variant is offered only where its code runs."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core.catalog import CatalogError, allowed, parse, runs_on
from spawner.core.model import Code, Refusal, Variant

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = """
version = 1
[base]
image = "gpucampus/base"
suite = "bookworm"
[variants.cpu]
title = "CPU"
folder = "images/cpu"
image = "gpucampus/cpu:1"
default = true
[variants.cuda]
title = "CUDA"
folder = "images/cuda"
image = "registry:5000/gpucampus/cuda@sha256:%s"
min_driver = "525.60.13"
architectures = [86, 80, 90]
roles = ["researcher", "teacher"]
""" % ("a" * 64)  # a format string would need every brace doubled
CUDA = Variant(name="cuda", title="CUDA", min_driver="525.60.13", architectures=(80, 86, 90), image="x:1")


def test_the_repository_s_own_catalog_is_valid_and_its_folders_are_named():
    catalog = parse((ROOT / "images" / "catalog.toml").read_text(encoding="utf-8"))
    assert catalog.default_of({"cpu", "cu126"}).name == "cu126"
    assert catalog.usual[0].name == "cpu", "what `make run` builds needs no GPU"
    assert catalog.folder("cpu") == "images/cpu"


def test_a_variant_says_what_it_is_for_and_how_large_it_is_or_nothing_of_it():
    more = 'default = true\nuse = "course"\ncompressed_mb = 404\nunpacked_mb = 1320'
    cpu, cuda = parse(TEXT.replace("default = true", more)).variants
    assert (cpu.use, cpu.compressed_mb, cpu.unpacked_mb) == ("course", 404, 1320)
    assert (cuda.use, cuda.compressed_mb, cuda.unpacked_mb) == ("", 0, 0)


def test_variants_are_in_the_order_of_the_file():
    catalog = parse(TEXT)
    assert [variant.name for variant in catalog.variants] == ["cpu", "cuda"]
    assert catalog.base.suite == "bookworm"
    cuda = catalog.get("cuda")
    assert cuda is not None
    assert cuda.architectures == (80, 86, 90)
    assert catalog.get("CUDA") is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param('title = "CPU"', 'titel = "CPU"', ["variants.cpu.titel", "title"], id="unknown-variant-key"),
        pytest.param('suite = "bookworm"', 'suit = "x"', ["base.suit is not"], id="unknown-base-key"),
        pytest.param("version = 1", "version = 1\nvariant = 2", ["variant is not a key"], id="unknown-key"),
        pytest.param("version = 1", "version = 2", ["version = 2", "allowed is 1"], id="version"),
        pytest.param("version = 1", "version = true", ["version = True"], id="version-bool"),
        pytest.param('title = "CPU"\n', "", ["variants.cpu.title is missing"], id="missing-title"),
        pytest.param('folder = "images/cpu"\n', "", ["variants.cpu.folder is missing"], id="missing-folder"),
        pytest.param('"images/cpu"', '"../etc"', ["variants.cpu.folder = '../etc'"], id="folder-climbs"),
        pytest.param('"images/cpu"', '"/etc"', ["variants.cpu.folder = '/etc'"], id="folder-absolute"),
        pytest.param("gpucampus/cpu:1", "gpucampus/cpu:latest", ["variants.cpu.image", "latest"], id="latest"),
        pytest.param("gpucampus/cpu:1", "gpucampus/cpu", ["variants.cpu.image", "tag"], id="no-tag"),
        pytest.param("gpucampus/cpu:1", "registry:5000/cpu", ["variants.cpu.image", "tag"], id="port-is-no-tag"),
        pytest.param("default = true\n", "", ["no variant", "exactly one"], id="no-default"),
        pytest.param("roles = [", "default = true\nroles = [", ["cpu, cuda", "exactly one"], id="two-defaults"),
        pytest.param("default = true", "default = 1", ["variants.cpu.default = 1"], id="default-type"),
        pytest.param("[86, 80, 90]", "[8.6]", ["variants.cuda.architectures", "86"], id="dotted-architecture"),
        pytest.param("[86, 80, 90]", "[true]", ["variants.cuda.architectures"], id="bool-architecture"),
        pytest.param('"525.60.13"', '"new"', ["variants.cuda.min_driver = 'new'"], id="driver"),
        pytest.param('min_driver = "525.60.13"\n', "", ["min_driver", "both or neither"], id="driver-missing"),
        pytest.param('["researcher", "teacher"]', '"researcher"', ["variants.cuda.roles"], id="roles-type"),
        pytest.param("[variants.cuda]", "[variants.'cu da']", ["cu da"], id="variant-name"),
        pytest.param(
            'suite = "b', 'registry_image = "debian:12"\nsuite = "b', ["base.registry_image"], id="base-by-tag"
        ),
        pytest.param('"CPU"', '"C\\nPU"', ["variants.cpu.title", "one line"], id="two-lines"),
        pytest.param('"CPU"', "7", ["variants.cpu.title = 7"], id="title-type"),
        pytest.param(
            "default = true", 'default = true\nuse = "exam"', ["variants.cpu.use = 'exam'", "research"], id="use"
        ),
        pytest.param("default = true", "default = true\nuse = 1", ["variants.cpu.use = 1", "course"], id="use-type"),
        pytest.param(
            "default = true", 'default = true\nunpacked_mb = "5G"', ["variants.cpu.unpacked_mb = '5G'"], id="size-text"
        ),
        pytest.param("default = true", "default = true\ncompressed_mb = -1", ["compressed_mb = -1"], id="size-below-0"),
        pytest.param("default = true", "default = true\ncompressed_mb = true", ["compressed_mb"], id="size-bool"),
        pytest.param("[base]", "[bas", ["not valid TOML"], id="no-toml"),
    ],
)
def test_mistake_is_named_in_one_line(old, new, words):
    assert old in TEXT
    with pytest.raises(CatalogError) as caught:
        parse(TEXT.replace(old, new))
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "version = 1", "version = 1\nbase = 3", "version = 1\n[base]\nimage='a'\nsuite='b'\n[variants]"]
)
def test_half_a_catalog_is_refused(text):
    with pytest.raises(CatalogError):
        parse(text)


def test_two_variants_with_one_image_are_refused():
    digest = "registry:5000/gpucampus/cuda@sha256:" + "a" * 64
    with pytest.raises(CatalogError, match="two variants"):
        parse(TEXT.replace("gpucampus/cpu:1", digest))


@given(st.text(max_size=300))
def test_any_text_is_a_catalog_or_a_catalog_error(text):
    with contextlib.suppress(CatalogError):
        parse(text)


def test_a_variant_without_roles_is_for_everybody():
    assert allowed(Variant(name="cpu", title="CPU"), [])


def test_a_variant_with_roles_is_for_one_of_them():
    variant = Variant(name="cuda", title="CUDA", roles=("researcher", "teacher"))
    assert allowed(variant, ["student", "teacher"])
    assert not allowed(variant, ["student"])
    assert not allowed(variant, [])


@pytest.mark.parametrize(
    ("driver", "compute_capability", "code"),
    [
        pytest.param("580.95.05", 80, None, id="exact-architecture"),
        pytest.param("525.60.13", 89, None, id="8.6-code-on-8.9"),
        pytest.param("525.60.13", 90, None, id="lowest-driver"),
        pytest.param("525.105.17", 80, None, id="numbers-not-letters"),
        pytest.param("525.60.9", 80, Code.DRIVER_TOO_OLD, id="last-part-older"),
        pytest.param("525.60", 80, Code.DRIVER_TOO_OLD, id="shorter"),
        pytest.param("99.0", 80, Code.DRIVER_TOO_OLD, id="99-is-below-525"),
        pytest.param("", 80, Code.DRIVER_TOO_OLD, id="no-driver"),
        pytest.param("580.95.05", 75, Code.ARCHITECTURE, id="older-major"),
        pytest.param("580.95.05", 100, Code.ARCHITECTURE, id="9.0-code-not-on-10.0"),
        pytest.param("580.95.05", 120, Code.ARCHITECTURE, id="newer-major"),
        pytest.param("580.95.05", 0, Code.ARCHITECTURE, id="unknown-gpu"),
    ],
)
def test_a_variant_runs_where_driver_and_code_fit(driver, compute_capability, code):
    refusal = runs_on(CUDA, driver, compute_capability)
    assert (refusal.code if refusal else None) == code


def test_a_minor_below_every_code_of_its_major_is_refused():
    variant = Variant(name="ada", title="Ada", min_driver="525", architectures=(86,))
    assert runs_on(variant, "580", 80) == Refusal.of(Code.ARCHITECTURE, variant="ada", capability="8.0", built="8.6")


def test_trailing_zeros_of_a_driver_do_not_count():
    variant = Variant(name="x", title="X", min_driver="535.0", architectures=(80,))
    assert runs_on(variant, "535", 80) is None


@given(st.text(max_size=20), st.integers(0, 200))
def test_a_variant_that_needs_no_gpu_runs_everywhere(driver, compute_capability):
    assert runs_on(Variant(name="cpu", title="CPU"), driver, compute_capability) is None


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.integers(0, 999))
def test_a_newer_driver_never_hurts(parts, more):
    driver = ".".join(map(str, parts))
    newer = f"{parts[0] + more + 1}"
    if runs_on(CUDA, driver, 80) is None:
        assert runs_on(CUDA, newer, 80) is None


def test_a_variant_on_demand_is_not_built_by_itself_and_another_is():
    text = TEXT.replace('title = "CUDA"', 'title = "CUDA"\non_demand = true')
    catalog = parse(text)
    assert [variant.name for variant in catalog.usual] == ["cpu"]
    with pytest.raises(CatalogError, match="on_demand is set by every variant"):
        parse(text.replace('title = "CPU"', 'title = "CPU"\non_demand = true'))
    with pytest.raises(CatalogError, match=r"on_demand = 1: allowed is true or false"):
        parse(TEXT.replace('title = "CPU"', 'title = "CPU"\non_demand = 1'))


@pytest.mark.parametrize(
    ("built", "chosen"), [({"cpu", "cuda"}, "cpu"), ({"cuda"}, "cuda"), ((), "cpu"), ({"gone"}, "cpu")]
)
def test_the_default_is_one_that_is_built_here(built: set[str], chosen: str):
    assert parse(TEXT).default_of(built).name == chosen
