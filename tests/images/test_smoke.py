"""The smoke test in the built CPU image, and what it says of an image that is not what it should be."""

import json
from pathlib import Path
from typing import Any

import pytest

from spawner.container import host_config
from spawner.core.model import Person
from spawner.injection import Injected
from tests.core.strategies import claim
from tests.rig.tools_inside import PERSON, options, write_variant

pytestmark = pytest.mark.images

CUDA = {"variant": "cu126", "torch": "2.13.0", "cuda": "12.6", "min_driver": "525.60.13"}


@pytest.fixture(scope="module")
def image(engine: Any) -> str:
    return str(engine.build_variant("cpu"))


def smoke_of(engine: Any, image: str, variant: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
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
    status, found, table = smoke_of(engine, image, write_variant(tmp_path))
    print(table)
    steps = {step["name"]: step for step in found["steps"]}
    assert {name: step["detail"] for name, step in steps.items() if step["status"] != "ok"} == {}
    assert status == found["code"] == 0
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
    status, found, _ = smoke_of(engine, image, write_variant(tmp_path, **said), *arguments)
    assert status == 2
    assert "CPU build" in found["verdict"]
    assert [step["name"] for step in found["steps"]] == ["import"], "decided before anything is computed"


def test_what_is_compiled_in_a_servers_tmp_can_be_loaded(engine: Any, probe_image: str) -> None:
    """As torch.compile does there; Docker's own choice for such a file system is noexec."""
    person = Person(sub="s", uid=200_000, hub_name="ann", home="200000")
    parts = host_config(claim().limits, person, home="/", identity=("/", "/"), injected=Injected(), with_gpus=False)
    program = "import ctypes, glob, shutil; shutil.copy(glob.glob('/lib/*/libm.so.6')[0], '/tmp/made.so'); "
    command = ["python3", "-c", program + "ctypes.CDLL('/tmp/made.so'); print('loaded')"]
    options = {"tmpfs": parts["tmpfs"], "read_only": True, "user": PERSON}
    assert engine.output_of(probe_image, command, **options) == "loaded\n"
