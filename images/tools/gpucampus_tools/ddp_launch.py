"""`ddp-test`: run ddp_test.py on the ranks of this machine, with what works without a network."""

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["command", "main"]


def command(ranks: int, port: int, rest: Sequence[str]) -> list[str]:
    """What starts the ranks: they meet at this machine's own address, since `--standalone` asks for its host name."""
    meeting = ["--nnodes=1", f"--nproc_per_node={ranks}", "--master_addr=127.0.0.1", f"--master_port={port}"]
    program = str(Path(__file__).with_name("ddp_test.py"))
    return [sys.executable, "-I", "-m", "torch.distributed.run", *meeting, program, *rest]


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the ranks, and end as they do: 0 if all is well."""
    parser = argparse.ArgumentParser(
        prog="ddp-test", description="Train a small model on several processes, and see that they work together."
    )
    parser.add_argument("--ranks", type=int, help="how many processes (default: one for each GPU, or 2 without)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds after which it is given up")
    parser.add_argument("--epochs", default="3")
    parser.add_argument("--folder", default="ddp-logs", help="the folder of the ranks' logs")
    chosen = parser.parse_args(arguments)
    # all of it is on this machine
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} | dict(os.environ)
    rest = ["--epochs", chosen.epochs, "--folder", chosen.folder]
    started = command(chosen.ranks or _gpus() or 2, _free_port(), rest)
    running = subprocess.Popen(started, env=environment, start_new_session=True)
    try:
        ended = running.wait(chosen.timeout)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # the ranks, too
        running.wait()
        print(f"The ranks did not end in {chosen.timeout:.0f} s. Their logs are in {chosen.folder}.", file=sys.stderr)
        return 1
    print("The ranks work together." if ended == 0 else f"A rank failed; the logs are in {chosen.folder}.")
    return 1 if ended else 0


def _gpus() -> int:
    import torch  # noqa: PLC0415 - takes seconds, and is not needed when the number is given

    return int(torch.cuda.device_count())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
