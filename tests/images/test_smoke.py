"""The smoke test in the built CPU image, and what it says of an image that is not what it should be."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rig.tools_inside import options, write_variant

pytestmark = pytest.mark.images

CUDA = {"variant": "cu126", "torch": "2.13.0", "cuda": "12.6", "min_driver": "525.60.13"}


@pytest.fixture(scope="module")
def image(engine: Any) -> str:
    return str(engine.build_variant("cpu"))


def tested(engine: Any, image: str, variant: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the smoke test without a network; its status, its JSON and its table."""
    more = {"shm_size": "256m", "mem_limit": "3g"}
    with engine.container(image, ["gpucampus-smoke", "--json", "-", *arguments], **options(variant, **more)) as made:
        made.start()
        status = made.wait(timeout=900)["StatusCode"]
        return status, json.loads(made.logs(stderr=False)), made.logs(stdout=False).decode()


@pytest.mark.timeout(900)
def test_the_cpu_variant_passes_every_step_without_a_gpu_and_without_a_network(
    engine: Any, image: str, tmp_path: Path
) -> None:
    status, found, table = tested(engine, image, write_variant(tmp_path))
    print(table)
    steps = {step["name"]: step for step in found["steps"]}
    compiler = "none of the compilers" not in steps["compile"]["detail"]  # an image from before it had one
    assert {name for name, step in steps.items() if step["status"] != "ok"} == (set() if compiler else {"compile"})
    assert status == found["code"] == (0 if compiler else 2)
    assert steps["distributed"]["detail"] == "gloo, 2 rank(s): ddp ok, fsdp1 ok, fsdp2 ok"


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        pytest.param(CUDA, (), id="cuda-variant"),
        pytest.param(CUDA, ("--allow-cpu",), id="though-cpu-is-allowed"),
        pytest.param({}, ("--expect-gpu",), id="gpu-expected"),
    ],
)
def test_a_cpu_build_where_cuda_should_be_is_a_fault_of_the_image(
    engine: Any, image: str, tmp_path: Path, said: dict[str, Any], arguments: tuple[str, ...]
) -> None:
    status, found, _ = tested(engine, image, write_variant(tmp_path, **said), *arguments)
    assert status == 2
    assert "CPU build" in found["verdict"]
    assert [step["name"] for step in found["steps"]] == ["import"], "decided before anything is computed"
