"""A small training on several processes: a model for your own, and a test that they work together.

Run it with `ddp-test`, or as any such program, for instance with two GPUs:

    torchrun --nproc_per_node=2 -m gpucampus_tools.ddp_test --folder logs

Each rank writes a log of its own. The ranks compare, too: together they have seen each row in each epoch, and at the
end their models are equal to the last bit.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROWS, FEATURES = 256, 16


def rows() -> TensorDataset:
    """The same rows on each rank: y is a known function of x, so the loss must go down."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=generator)
    return TensorDataset(torch.arange(ROWS), x, x.sum(dim=1, keepdim=True))


def train(epochs: int, device: torch.device, log: logging.Logger) -> None:
    """Train, and check what only works if the ranks do work together."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # unequal on purpose: wrapping makes all models equal to that of rank 0
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data = rows()
    sampler = DistributedSampler(data, shuffle=True, drop_last=False)  # gives each rank its own part of the rows
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # else each epoch has the order of the first
        seen = torch.zeros(ROWS, device=device)
        for number, x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
            loss.backward()  # here the ranks average their gradients
            optimizer.step()
            seen[number.to(device)] += 1
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
        log.info("epoch %d: %d rows here, loss %.5f over all ranks", epoch, int(seen.sum()), losses[-1])
        dist.all_reduce(seen)
        if int(seen.sum()) != sampler.total_size or not bool((seen >= 1).all()):
            raise SystemExit("Some rows were seen by no rank, or by too many.")
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    first = weights.clone()
    dist.broadcast(first, src=0)
    if not torch.equal(first, weights):
        raise SystemExit(f"The model of rank {rank} differs from that of rank 0.")
    if losses[-1] >= losses[0]:
        raise SystemExit(f"The loss did not go down: {losses}.")
    log.info("the models of %d ranks are equal; the loss went from %.5f to %.5f", ranks, losses[0], losses[-1])


def main() -> None:
    """Join the other ranks, train, and leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("ddp-logs"))
    chosen = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger("ddp")
    log.setLevel(logging.INFO)
    line = logging.Formatter(f"%(asctime)s rank {dist.get_rank()} %(message)s")
    file = chosen.folder / f"rank-{dist.get_rank()}.log"
    for handler in (logging.FileHandler(file, mode="w"), logging.StreamHandler()):
        handler.setFormatter(line)
        log.addHandler(handler)
    log.info("of %d, %s on %s", dist.get_world_size(), dist.get_backend(), device)
    train(chosen.epochs, device, log)
    dist.barrier()
    dist.destroy_process_group()
    logging.shutdown()
    sys.stdout.flush()
    if not on_gpu:
        os._exit(0)  # gloo's threads now and then abort a process that ends the usual way; all is done and written


if __name__ == "__main__":
    main()
