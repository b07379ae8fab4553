"""The smoke test's verdicts, and what it does with steps that hang, die or fail; no PyTorch is needed."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucampus_tools import nvml, smoke, smoke_verdict, variant
from gpucampus_tools.smoke_verdict import GPU_FAULT, IMAGE_FAULT, NO_GPU, PASS, Ending, Step
from gpucampus_tools.variant import Variant

CPU = Variant(name="cpu", torch="2.13.0")
CUDA = Variant(name="cu126", torch="2.7.1", cuda="12.6", min_driver="525.60.13")


@pytest.mark.parametrize(
    ("said", "torch", "cuda", "expect_gpu", "code"),
    [
        pytest.param(CPU, "2.13.0", "", False, None, id="cpu"),
        pytest.param(CUDA, "2.7.1", "12.6", True, None, id="cuda"),
        pytest.param(CUDA, "2.7.1", "", False, IMAGE_FAULT, id="cpu-build-in-a-cuda-variant"),
        pytest.param(CPU, "2.13.0", "", True, IMAGE_FAULT, id="gpu-expected-of-a-cpu-build"),
        pytest.param(CUDA, "2.7.0", "12.6", False, IMAGE_FAULT, id="another-torch"),
        pytest.param(CUDA, "2.7.1", "12.8", False, IMAGE_FAULT, id="another-cuda"),
    ],
)
def test_an_image_that_holds_something_else_is_at_fault(said, torch, cuda, expect_gpu, code) -> None:
    found = smoke_verdict.image_fault(said, torch, cuda, expect_gpu=expect_gpu)
    assert (found and found.code) == code


@pytest.mark.parametrize(
    ("cuda", "usable", "given", "allow_cpu", "expect_gpu", "expected"),
    [
        pytest.param("", 0, False, False, False, "cpu", id="cpu-build"),
        pytest.param("12.6", 1, True, False, True, "cuda", id="gpu"),
        pytest.param("12.6", 0, True, False, False, GPU_FAULT, id="given-and-unusable"),
        pytest.param("12.6", 0, True, True, False, GPU_FAULT, id="given-and-unusable-though-cpu-is-allowed"),
        pytest.param("12.6", 0, False, False, False, NO_GPU, id="none-given"),
        pytest.param("12.6", 0, False, True, False, "cpu", id="none-given-and-cpu-allowed"),
        pytest.param("12.6", 0, False, True, True, NO_GPU, id="none-given-and-one-expected"),
    ],
)
def test_where_is_decided_before_anything_is_computed(cuda, usable, given, allow_cpu, expect_gpu, expected) -> None:
    found = smoke_verdict.where(cuda, usable=usable, given=given, allow_cpu=allow_cpu, expect_gpu=expect_gpu)
    assert (found.code if isinstance(found, Ending) else found) == expected


def step(name: str, status: str = "ok", fault: str = "") -> Step:
    return Step(name=name, status=status, seconds=0.1, fault=fault)


@pytest.mark.parametrize(
    ("steps", "device", "code"),
    [
        pytest.param([step("a"), step("b", "unsupported")], "cuda", PASS, id="unsupported-is-no-failure"),
        pytest.param([step("a"), step("b", "failed")], "cuda", GPU_FAULT, id="on-a-gpu"),
        pytest.param([step("a"), step("b", "failed")], "cpu", IMAGE_FAULT, id="on-the-cpu"),
        pytest.param([step("a", "failed"), step("b", "failed", "image")], "cuda", IMAGE_FAULT, id="no-compiler"),
        pytest.param([step("a")], "cuda", IMAGE_FAULT, id="a-step-is-missing"),
    ],
)
def test_whose_fault_a_failed_step_is(steps, device, code) -> None:
    assert smoke_verdict.ending(steps, device, ("a", "b")).code == code


WAYS = {"ddp": [1.0], "fsdp1": [1.0], "fsdp2": "unsupported"}


@pytest.mark.parametrize(
    ("backends", "expected", "status", "passes"),
    [
        pytest.param(["gloo", "gloo"], "gloo", 0, True, id="cpu"),
        pytest.param(["gloo", "gloo"], "gloo", 1, True, id="gloo-aborted-after-its-results"),
        pytest.param(["gloo"], "gloo", 1, False, id="a-rank-is-missing"),
        pytest.param(["gloo", "gloo"], "nccl", 0, False, id="gloo-instead-of-nccl"),
        pytest.param(["nccl", "nccl"], "nccl", 1, False, id="nccl-that-ends-badly"),
        pytest.param(["nccl", "nccl"], "nccl", 0, True, id="nccl"),
    ],
)
def test_ranks_pass_only_with_all_their_results_and_the_right_backend(backends, expected, status, passes) -> None:
    answers = [{"backend": backend, **WAYS} for backend in backends]
    found = smoke_verdict.distributed(answers, ranks=2, backend=expected, status=status, words="")
    assert (found.status == "ok") is passes
    assert not passes or "fsdp2 unsupported" in found.detail


# -- the program, with a worker of the test's own in the place of PyTorch ---------------------------------------------

WORKER = """
import json, os, sys, time
descriptor, names = int(sys.argv[1]), sys.argv[2:]
for name in names:
    {body}
    detail = {facts} if name == "import" else "fine"
    os.write(descriptor, json.dumps({{"step": name, "status": "ok", "detail": detail}}).encode() + b"\\n")
"""
CPU_FACTS = {"torch": "2.13.0", "cuda": "", "cudnn": "", "gpus": []}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Run the smoke test on an image; gives the status, the JSON and the table."""

    def run(
        *arguments: str, body: str = "pass", facts: dict[str, Any] = CPU_FACTS, said: Variant = CPU
    ) -> tuple[int, dict[str, Any], str]:
        package = tmp_path / "packages/gpucampus_tools"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()
        (package / "smoke_steps.py").write_text(WORKER.format(body=body, facts=facts))
        table = io.StringIO()
        monkeypatch.setattr(smoke, "_PACKAGE", package)
        monkeypatch.setattr(variant, "read", lambda: said)
        monkeypatch.setattr(sys, "stdout", table)
        monkeypatch.setattr(smoke, "_distributed", lambda *_arguments: step("distributed"))
        result = tmp_path / "result.json"
        status = smoke.main([*arguments, "--json", str(result)])
        return status, json.loads(result.read_text()), table.getvalue()

    monkeypatch.setattr(smoke, "look_within", lambda: None)
    monkeypatch.setattr(smoke, "_DEV", tmp_path)
    return run


def test_a_good_cpu_image_passes_and_every_step_is_in_table_and_json(program) -> None:
    status, found, table = program()
    assert status == found["code"] == PASS
    assert [one["name"] for one in found["steps"]] == list(smoke.LIMITS_S)
    assert all(name in table for name in smoke.LIMITS_S)
    assert "no GPU was tested" in found["verdict"]
    assert (found["variant"], found["torch"], found["driver"]) == ("cpu", "2.13.0", "")


def test_a_step_that_hangs_is_ended_at_its_limit_and_the_others_are_still_done(program, monkeypatch) -> None:
    monkeypatch.setattr(smoke, "LIMITS_S", {**smoke.LIMITS_S, "conv": 1.0})
    status, found, _ = program(body="time.sleep(60 if name == 'conv' else 0)")
    failed = [one for one in found["steps"] if one["status"] == "failed"]
    assert status == IMAGE_FAULT
    assert [(one["name"], one["detail"]) for one in failed] == [("conv", "no answer within 1 s")]
    assert len(found["steps"]) == len(smoke.LIMITS_S)


def test_a_step_that_kills_its_process_is_named_with_its_last_words(program) -> None:
    body = "name == 'lstm' and (print('illegal instruction', flush=True), os.kill(os.getpid(), 9))"
    status, found, _ = program(body=body)
    failed = [one for one in found["steps"] if one["status"] == "failed"]
    assert status == IMAGE_FAULT
    assert [one["name"] for one in failed] == ["lstm"]
    assert "illegal instruction" in failed[0]["detail"]
    assert len(found["steps"]) == len(smoke.LIMITS_S)


def test_without_pytorch_the_plain_variant_says_so_and_passes(program) -> None:
    status, _, table = program(said=Variant(name="plain"))
    assert status == PASS
    assert table == "The variant plain has no PyTorch: there is nothing to test.\n"


def test_a_torch_that_cannot_be_imported_is_a_fault_of_the_image(program) -> None:
    status, found, _ = program(body="sys.exit('ImportError: libcudnn.so.9')")
    assert status == IMAGE_FAULT
    assert "libcudnn" in found["steps"][0]["detail"]


CUDA_FACTS = {"torch": "2.7.1", "cuda": "12.6", "cudnn": "9", "gpus": []}


@pytest.mark.parametrize(
    ("arguments", "facts", "seen", "code"),
    [
        pytest.param((), CUDA_FACTS | {"cuda": ""}, None, IMAGE_FAULT, id="cpu-build"),
        pytest.param(("--allow-cpu",), CUDA_FACTS | {"cuda": ""}, None, IMAGE_FAULT, id="cpu-build-and-cpu-allowed"),
        pytest.param((), CUDA_FACTS, None, NO_GPU, id="no-gpu-given"),
        pytest.param(("--allow-cpu",), CUDA_FACTS, None, PASS, id="cpu-allowed"),
        pytest.param((), CUDA_FACTS, nvml.Seen(driver="550", uuids=("GPU-1",)), GPU_FAULT, id="given-and-unusable"),
        pytest.param((), CUDA_FACTS, nvml.Seen(driver="550", uuids=(), failing=1), GPU_FAULT, id="given-and-lost"),
    ],
)
def test_the_status_says_whose_fault_it_is(program, monkeypatch, arguments, facts, seen, code) -> None:
    monkeypatch.setattr(smoke, "look_within", lambda: seen)
    assert program(*arguments, facts=facts, said=CUDA)[0] == code


def test_a_gpu_that_pytorch_can_use_is_what_is_tested(program) -> None:
    facts = CUDA_FACTS | {"gpus": [{"name": "A100", "capability": "8.0"}]}
    status, found, _ = program("--expect-gpu", facts=facts, said=CUDA)
    assert (status, found["verdict"]) == (PASS, "All steps passed on the GPU.")
    assert found["gpus"] == facts["gpus"]


def test_json_on_standard_output_is_alone_there(program, capsys, monkeypatch) -> None:
    program()  # sets the stand-ins
    monkeypatch.undo()
    monkeypatch.setattr(variant, "read", lambda: Variant(name="plain"))
    assert smoke.main(["--json", "-"]) == PASS
    printed = capsys.readouterr()
    assert json.loads(printed.out)["variant"] == "plain"
    assert "no PyTorch" in printed.err
