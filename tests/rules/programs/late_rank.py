"""Ranks train a speech model over gloo; ``late_rank.py CAUSE STEPS ddp|fsdp`` makes the last rank late, for one reason.

The causes: ``data``, ``lengths``, ``core`` (processes burn the core that the rank is bound to), ``collection``,
``backward``, ``python``; with ``none`` all ranks do the same.
"""

import gc
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import perfkit

CAUSE, STEPS, SHARDED, BATCH = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fsdp", 4
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LATE = CAUSE if RANK == RANKS - 1 else "none"

#: A core, for no longer than a training may take.
BURNING = "import time; until = time.monotonic() + 120\nwhile time.monotonic() < until: pass"


class Recordings(Dataset[Tensor]):
    """Recordings of 40 features; the same number of frames on all ranks, or five times as many on one."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> Tensor:
        if LATE == "data":
            time.sleep(0.006)
        return torch.randn(150 if LATE == "lengths" else 30, 40)


class Slow(torch.autograd.Function):
    """Does nothing, in a backward that takes long."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if LATE == "backward":
            time.sleep(0.02)
        return gradient


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.states, self.last = nn.Linear(40, 64), nn.GRU(64, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Slow.apply(self.states(self.first(x))[0]))


def statistics(x: Tensor) -> float:
    """Something in Python that one rank computes after each step."""
    total, until = 0.0, time.perf_counter() + 0.02
    while time.perf_counter() < until:
        total += sum(x[0, 0].tolist())
    return total


def bind_to_core() -> list[subprocess.Popen[bytes]]:
    """Bind the late rank to a core, and start what burns it; for this cause only."""
    if LATE != "core":
        return []
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    # Of four a core gives the rank little even though it is let in at once after it slept in a collective.
    return [subprocess.Popen([sys.executable, "-c", BURNING]) for _ in range(3)]


def main() -> None:
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/rendezvous", rank=RANK, world_size=RANKS)
    torch.set_num_threads(1)
    torch.manual_seed(RANK)
    kept = [[number] for number in range(200_000)] if LATE == "collection" else []
    model: nn.Module = Speech()
    if SHARDED:
        from torch.distributed.fsdp import fully_shard  # torch 2.4 has none

        fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    burning: list[subprocess.Popen[bytes]] = []
    with perfkit.profile("run", schedule=None, quiet=True):
        for number, recording in enumerate(DataLoader(Recordings(), batch_size=BATCH)):
            if number == 2:
                # Not earlier: what perfkit and torch import first takes more than a minute of a core that is shared.
                burning = bind_to_core()
            loss = model(recording).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if LATE == "python":
                statistics(recording)
            if kept:
                gc.collect()
        for process in burning:
            process.kill()
    dist.barrier()
    # Not by returning: at the end of a process torch's gloo aborts one time in eight, with and without perfkit.
    os._exit(0)


main()
