"""The smoke test over several processes: the same few steps of training in three ways must give the same losses.

Run by `torchrun`, one process a GPU (two on the CPU). Each rank writes what it found to a file of its own in the folder
GPUCAMPUS_SMOKE_FOLDER; the backend must be the one in GPUCAMPUS_SMOKE_BACKEND, so that a missing driver cannot pass.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["main"]

_STEPS = 3
_TOLERANCE = 1e-4
_FSDP_ON_CPU = (2, 4)  # before, FSDP needs a GPU


class Disagreement(RuntimeError):  # noqa: N818 - what happened
    """The ranks, or the ways to train, did not come to the same result."""


class Rank:
    """This process among the others."""

    def __init__(self) -> None:
        self.number, self.local, self.count = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        self.backend = "nccl" if torch.cuda.is_available() else "gloo"
        self.device = torch.device("cuda", self.local) if self.backend == "nccl" else torch.device("cpu")
        if self.backend == "nccl":
            torch.cuda.set_device(self.device)

    def model(self) -> nn.Module:
        """Make the same model on every rank and in every way to train it."""
        torch.manual_seed(7)
        layers = (nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8))
        return nn.Sequential(*layers).to(self.device)

    def train(self, model: nn.Module) -> list[float]:
        """Train on this rank's part of the data; the losses of all ranks' parts together."""
        data = torch.Generator().manual_seed(1000 + self.number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        losses = []
        for _ in range(_STEPS):
            rows = torch.randn(24, 32, generator=data).to(self.device)
            labels = torch.randint(0, 8, (24,), generator=data).to(self.device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            shared = loss.detach().clone()
            dist.all_reduce(shared)
            losses.append(shared.item() / self.count)
        return losses

    def all_reduce(self) -> list[float]:
        """Add up a number of each rank."""
        numbers = torch.full((1024,), float(self.number + 1), device=self.device)
        dist.all_reduce(numbers)
        expected = self.count * (self.count + 1) / 2
        if not bool((numbers == expected).all()):
            raise Disagreement(f"all-reduce gave {numbers[0].item()} instead of {expected}")
        return [expected]

    def ddp(self) -> list[float]:
        """Train replicas; afterwards their weights must be the same on every rank."""
        on = [self.local] if self.backend == "nccl" else None
        model = nn.parallel.DistributedDataParallel(self.model(), device_ids=on)
        losses = self.train(model)
        weight = next(iter(model.parameters())).detach().contiguous()
        others = [torch.empty_like(weight) for _ in range(self.count)]
        dist.all_gather(others, weight)
        if not all(torch.equal(weight, other) for other in others):
            raise Disagreement("after DDP the ranks have different weights")
        return losses

    def fsdp1(self) -> list[float]:
        """Train shards with the older interface."""
        from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: PLC0415 - its absence is a result

        return self.train(FullyShardedDataParallel(self.model(), device_id=self.device, use_orig_params=True))

    def fsdp2(self) -> list[float]:
        """Train shards with the newer interface, which is public since PyTorch 2.6."""
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

        mesh, model = init_device_mesh(self.device.type, (self.count,)), self.model()
        for layer in model.children():
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return self.train(model)


def attempt(rank: Rank, way: Callable[[], list[float]], name: str) -> object:
    """Give a way's losses, or that this PyTorch does not have it."""
    try:
        return way()
    except ImportError:
        return "unsupported"
    except Exception:
        if name == "fsdp1" and rank.backend == "gloo" and _version() < _FSDP_ON_CPU:
            return "unsupported"
        raise


def main() -> int:
    """Do all of it on this rank."""
    signal.alarm(int(os.environ["GPUCAMPUS_SMOKE_LIMIT"]))  # torchrun may be gone by then
    rank = Rank()
    expected = os.environ["GPUCAMPUS_SMOKE_BACKEND"]
    if rank.backend != expected:
        sys.stderr.write(f"rank {rank.number}: the backend is {rank.backend} and should be {expected}\n")
        return 1
    dist.init_process_group(rank.backend)
    found: dict[str, object] = {"backend": rank.backend, "ranks": rank.count}
    for name in ("all_reduce", "ddp", "fsdp1", "fsdp2"):
        began = time.monotonic()
        found[name] = attempt(rank, getattr(rank, name), name)
        found[f"{name}_s"] = round(time.monotonic() - began, 2)
    for name in ("fsdp1", "fsdp2"):
        _compare(name, found[name], found["ddp"])
    dist.barrier()
    dist.destroy_process_group()
    folder = Path(os.environ["GPUCAMPUS_SMOKE_FOLDER"])
    (folder / f"rank-{rank.number}.part").write_text(json.dumps(found))
    (folder / f"rank-{rank.number}.part").rename(folder / f"rank-{rank.number}.json")
    sys.stdout.flush()
    # Not the usual way out: gloo's threads abort the process now and then as the interpreter takes itself apart.
    os._exit(0)


def _compare(name: str, losses: object, expected: object) -> None:
    if losses == "unsupported":
        return
    pairs = zip(losses, expected, strict=True)  # type: ignore[call-overload] # lists, as attempt() gave them
    if not all(abs(one - other) <= _TOLERANCE for one, other in pairs):
        raise Disagreement(f"{name} has the losses {losses}, DDP has {expected}")


def _version() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))


if __name__ == "__main__":
    sys.exit(main())
