"""What the smoke test makes of what it found: pure rules, values in and values out.

Statuses: 0 pass, 1 GPU fault, 2 image fault, 3 no GPU given. They are decided from facts and steps, never from the
status of torchrun, which is 1 whatever its workers' was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpucampus_tools.variant import Variant

__all__ = [
    "GPU_FAULT",
    "IMAGE_FAULT",
    "NO_GPU",
    "PASS",
    "Ending",
    "Step",
    "distributed",
    "ending",
    "image_fault",
    "where",
]

PASS, GPU_FAULT, IMAGE_FAULT, NO_GPU = range(4)
_WAYS = ("ddp", "fsdp1", "fsdp2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came of one step: ok, failed or unsupported; `fault` is "image" where the image is to blame for sure."""

    name: str
    status: str
    seconds: float
    detail: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The exit status and the sentence that goes with it."""

    code: int
    text: str


def image_fault(said: Variant, torch: str, cuda: str, *, expect_gpu: bool) -> Ending | None:
    """Compare what was imported with what the image says; None where that is the same."""
    if (said.cuda or expect_gpu) and not cuda:
        return Ending(code=IMAGE_FAULT, text=f"PyTorch {torch} is a CPU build, and the variant {said.name} needs CUDA.")
    if torch != said.torch:
        return Ending(code=IMAGE_FAULT, text=f"PyTorch is {torch}, and the variant {said.name} has {said.torch}.")
    if cuda != said.cuda:
        needs = said.cuda or "none"
        return Ending(code=IMAGE_FAULT, text=f"CUDA is {cuda or 'none'}, and the variant {said.name} has {needs}.")
    return None


def where(cuda: str, *, usable: int, given: bool, allow_cpu: bool, expect_gpu: bool) -> str | Ending:
    """Say on which device to test, or why not at all.

    Parameters
    ----------
    cuda
        The CUDA that PyTorch was built for, empty for a CPU build.
    usable
        How many GPUs PyTorch can use.
    given
        Whether this container was given a GPU: its device node is there, or NVML lists it.
    allow_cpu, expect_gpu
        What the command line says; the second wins.
    """
    if not cuda:
        return "cpu"
    if usable:
        return "cuda"
    if given:
        return Ending(
            code=GPU_FAULT,
            text="A GPU was given and PyTorch cannot use it: look at the driver on the machine, and whether "
            "/dev/nvidia-uvm is in the container.",
        )
    if allow_cpu and not expect_gpu:
        return "cpu"
    return Ending(
        code=NO_GPU,
        text="No GPU was given to this container: start it with one, or test without by --allow-cpu.",
    )


def distributed(answers: Iterable[Mapping[str, object]], *, ranks: int, backend: str, status: int, words: str) -> Step:
    """Judge what the ranks wrote; `status` and `words` are torchrun's."""
    found = list(answers)
    wrong = [str(answer["backend"]) for answer in found if answer["backend"] != backend]
    if len(found) < ranks:
        return _failed(f"{len(found)} of {ranks} ranks came through: {words or f'torchrun ended with status {status}'}")
    if wrong:
        return _failed(f"the backend is {wrong[0]} instead of {backend}")
    ways = [f"{way} {'unsupported' if found[0][way] == 'unsupported' else 'ok'}" for way in _WAYS]
    detail = f"{backend}, {ranks} rank(s): {', '.join(ways)}"
    if status and backend != "gloo":
        return _failed(f"{detail}, but torchrun ended with status {status}")
    if status:  # gloo's threads: every rank had written its result before
        detail += f" (a process was aborted after its results, status {status})"
    return Step(name="distributed", status="ok", seconds=0, detail=detail)


def _failed(detail: str) -> Step:
    return Step(name="distributed", status="failed", seconds=0, detail=detail)


def ending(steps: Iterable[Step], device: str, expected: Iterable[str]) -> Ending:
    """Sum up. On a GPU a failed step is a fault of the GPU unless the image is to blame for sure."""
    done = list(steps)
    failed = [step for step in done if step.status == "failed"]
    missing = set(expected) - {step.name for step in done}
    if missing:
        return Ending(code=IMAGE_FAULT, text=f"Not all steps were done: {', '.join(sorted(missing))}.")
    if not failed:
        on = "the GPU" if device == "cuda" else "the CPU; no GPU was tested"
        return Ending(code=PASS, text=f"All steps passed on {on}.")
    names = ", ".join(step.name for step in failed)
    if device != "cuda" or any(step.fault == "image" for step in failed):
        return Ending(code=IMAGE_FAULT, text=f"Failed: {names}. The image is at fault.")
    return Ending(code=GPU_FAULT, text=f"Failed: {names}. The GPU or its driver is at fault.")
