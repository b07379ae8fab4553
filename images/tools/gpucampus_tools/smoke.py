"""The smoke test of an image and its GPUs: does PyTorch compute rightly here, alone and over several processes?

    gpucampus-smoke [--expect-gpu | --allow-cpu] [--json FILE|-]

Status 0 pass, 1 GPU fault, 2 image fault, 3 no GPU given. Each step has a time limit of its own and runs in a process
that is killed at the limit. It needs no network, writes below one temporary folder, and imports no PyTorch itself.
"""

import argparse
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from gpucampus_tools import nvml, smoke_verdict, variant
from gpucampus_tools.health import look_within
from gpucampus_tools.smoke_verdict import Ending, Step

__all__ = ["LIMITS_S", "main"]

# Generous for a busy machine with cold caches: the limit is there for what hangs.
LIMITS_S: Mapping[str, float] = {
    "import": 120,
    "memory": 60,
    "matmul": 60,
    "autocast": 60,
    "conv": 120,
    "lstm": 120,
    "compile": 240,
    "loader": 90,
    "distributed": 180,
}
_ALONE = tuple(name for name in LIMITS_S if name not in ("import", "distributed"))
_PACKAGE = Path(__file__).resolve().parent
_CPU_RANKS = 2
_TERM_S = 10.0
_DEV = Path("/dev")


@dataclass(slots=True, kw_only=True)
class Report:
    """What is found, as the table shows it and the JSON holds it."""

    variant: str
    out: IO[str]
    facts: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def begin(self, name: str) -> None:
        """Show that a step runs, where somebody watches."""
        if self.out.isatty():
            self.out.write(f"{name:<12} ...\r")
            self.out.flush()

    def add(self, step: Step) -> None:
        """Note a step that is done, and show it."""
        self.steps.append(step)
        self.out.write(f"{step.name:<12} {step.status:<12} {step.seconds:6.1f} s  {step.detail}\n")
        self.out.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Test, print, and answer with the status."""
    parser = argparse.ArgumentParser(prog="gpucampus-smoke", description="Test this image and its GPUs.")
    parser.add_argument("--expect-gpu", action="store_true", help="fail unless CUDA and nccl are used")
    parser.add_argument("--allow-cpu", action="store_true", help="let an image with CUDA be tested without a GPU")
    parser.add_argument("--json", metavar="FILE", help="write the result there; - is standard output")
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    out = sys.stderr if arguments.json == "-" else sys.stdout
    try:
        said = variant.read()
    except variant.VariantError as error:
        out.write(f"{error}\n")
        return smoke_verdict.IMAGE_FAULT
    report = Report(variant=said.name, out=out)
    with tempfile.TemporaryDirectory(prefix="gpucampus-smoke-", ignore_cleanup_errors=True) as folder:
        ended = _test(said, report, Path(folder), expect_gpu=arguments.expect_gpu, allow_cpu=arguments.allow_cpu)
    out.write(f"{ended.text}\n")
    if arguments.json:
        _write(arguments.json, report, ended, time.monotonic() - began)
    return ended.code


def _test(said: variant.Variant, report: Report, folder: Path, *, expect_gpu: bool, allow_cpu: bool) -> Ending:
    """Decide from facts first; then compute."""
    if not said.torch and not expect_gpu:
        text = f"The variant {said.name} has no PyTorch: there is nothing to test."
        return Ending(code=smoke_verdict.PASS, text=text)
    given = _look_at_gpus(report)
    steps = _steps(("import", *_ALONE), folder, report)
    with closing(steps):
        step, imported = next(steps)
        report.add(step)
        device = _device(said, report, imported, given=given, expect_gpu=expect_gpu, allow_cpu=allow_cpu)
        if isinstance(device, Ending):
            return device
        report.facts["device"] = device
        for step, _ in steps:
            report.add(step)
    report.begin("distributed")
    ranks = _CPU_RANKS if device == "cpu" else len(report.facts["gpus"])
    report.add(_distributed(ranks, device, folder))
    return smoke_verdict.ending(report.steps, device, LIMITS_S)


def _device(
    said: variant.Variant,
    report: Report,
    imported: dict[str, Any] | None,
    *,
    given: bool,
    expect_gpu: bool,
    allow_cpu: bool,
) -> str | Ending:
    """Say where to test, or why not at all."""
    if imported is None:
        return Ending(code=smoke_verdict.IMAGE_FAULT, text="PyTorch cannot be imported. The image is at fault.")
    torch, cuda, gpus = str(imported["torch"]), str(imported["cuda"]), imported["gpus"]
    report.facts |= imported
    if fault := smoke_verdict.image_fault(said, torch, cuda, expect_gpu=expect_gpu):
        return fault
    return smoke_verdict.where(cuda, usable=len(gpus), given=given, allow_cpu=allow_cpu, expect_gpu=expect_gpu)


def _look_at_gpus(report: Report) -> bool:
    """Note the driver, and tell whether this container was given a GPU at all."""
    try:
        seen = look_within()
    except nvml.DriverError as error:
        report.facts |= {"driver": "", "driver_trouble": str(error)}
        return True
    report.facts |= {"driver": seen.driver if seen else "", "uuids": list(seen.uuids) if seen else []}
    return bool(seen and (seen.uuids or seen.failing)) or any(_DEV.glob("nvidia[0-9]*"))


def _steps(
    names: Sequence[str], folder: Path, report: Report
) -> Generator[tuple[Step, dict[str, Any] | None], None, None]:
    """Do steps in a worker; one that hangs or dies in a step is replaced for those that are left."""
    left = list(names)
    while left:
        ours, theirs = os.pipe()
        with (folder / "output").open("wb") as output, os.fdopen(ours, "rb", buffering=0) as answers:
            command = [sys.executable, "-m", "gpucampus_tools.smoke_steps", str(theirs), *left]
            worker = subprocess.Popen(
                command,
                pass_fds=(theirs,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(folder),
                start_new_session=True,
            )
            os.close(theirs)
            try:
                while left:
                    name = left.pop(0)
                    report.begin(name)
                    began = time.monotonic()
                    line = _line(answers, LIMITS_S[name])
                    took = time.monotonic() - began
                    yield _judge(name, line, took, worker, folder / "output")
                    if not line:
                        break
            finally:
                _end(worker)


def _judge(
    name: str, line: bytes | None, took: float, worker: "subprocess.Popen[bytes]", output: Path
) -> tuple[Step, dict[str, Any] | None]:
    if line is None:
        return Step(name=name, status="failed", seconds=took, detail=f"no answer within {LIMITS_S[name]:g} s"), None
    if not line:
        why = f"its process ended with status {worker.wait()}{_last_line(output)}"
        return Step(name=name, status="failed", seconds=took, detail=why), None
    found = json.loads(line)
    detail, fault = found["detail"], found.get("fault", "")
    facts = detail if isinstance(detail, dict) else None
    if facts:
        detail = f"torch {facts['torch']}, CUDA {facts['cuda'] or 'none'}, {len(facts['gpus'])} GPU(s)"
    step = Step(name=name, status=found["status"], seconds=took, detail=_one_line(detail), fault=fault)
    return step, facts


def _line(answers: IO[bytes], limit_s: float) -> bytes | None:
    """Read a line; empty where the writer has ended, None where it takes too long."""
    deadline, found = time.monotonic() + limit_s, b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([answers], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return None
        got = answers.read(1)
        if not got:
            return b""
        found += got
    return found


def _distributed(ranks: int, device: str, folder: Path) -> Step:
    """Run torchrun with the rendezvous on this machine: without a network it would look for its own host name."""
    backend = "nccl" if device == "cuda" else "gloo"
    limit = LIMITS_S["distributed"]
    results = folder / "ranks"
    results.mkdir()
    environment = _environment(folder) | {
        "GPUCAMPUS_SMOKE_FOLDER": str(results),
        "GPUCAMPUS_SMOKE_BACKEND": backend,
        "GPUCAMPUS_SMOKE_LIMIT": str(int(limit)),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc_per_node={ranks}"]
    command += ["--master_addr=127.0.0.1", f"--master_port={_free_port()}", "-m", "gpucampus_tools.smoke_distributed"]
    began = time.monotonic()
    with (folder / "output").open("wb") as output:
        torchrun = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            status, words = torchrun.wait(limit), ""
        except subprocess.TimeoutExpired:
            status, words = 1, f"no end within {limit:g} s"
        finally:
            _end(torchrun, gently=True)
    if status and not words:
        words = _error_line(folder / "output")
    answers = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    step = smoke_verdict.distributed(answers, ranks=ranks, backend=backend, status=status, words=words)
    return replace(step, seconds=time.monotonic() - began)


def _environment(folder: Path) -> dict[str, str]:
    """Environment of what computes: our package and no one's own, caches in the temporary folder."""
    return os.environ | {
        "PYTHONPATH": str(_PACKAGE.parent),
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "USER": os.environ.get("USER", "smoke"),
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _end(child: "subprocess.Popen[bytes]", *, gently: bool = False) -> None:
    """End a process and its group; torchrun is first asked, since its workers have sessions of their own."""
    if gently and child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_TERM_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # inside the driver it does not die
        child.wait(_TERM_S)


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def _last_line(output: Path) -> str:
    lines = output.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1][:300]}" if lines else ""


def _error_line(output: Path) -> str:
    """The first error that a rank printed; what torchrun adds comes later and says less."""
    lines = output.read_text(errors="replace").splitlines()
    errors = [line for line in lines if "Error: " in line or "Disagreement: " in line or line.startswith("rank ")]
    return errors[0].strip()[:300] if errors else _last_line(output).removeprefix(": ")


def _write(name: str, report: Report, ended: Ending, seconds: float) -> None:
    answer = {
        "variant": report.variant,
        "python": platform.python_version(),
        **report.facts,
        "steps": [asdict(step) | {"seconds": round(step.seconds, 3)} for step in report.steps],
        "seconds": round(seconds, 3),
        "code": ended.code,
        "verdict": ended.text,
    }
    text = json.dumps(answer, indent=2) + "\n"
    if name == "-":
        sys.stdout.write(text)
    else:
        Path(name).write_text(text, encoding="utf-8")
