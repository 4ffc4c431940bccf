"""Two processes train together; one of them always draws the long recordings, and the other waits for it."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH = 70, 8, 96


def lengths(rank: int) -> tuple[int, int]:
    """Frames of a rank's recordings in even and in odd steps: the same sum over both ranks."""
    if FIXED:
        return 60, 60
    return (110, 110) if rank == 1 else (10, 10)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.GRU(40, WIDTH, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        recording = torch.randn(BATCH, lengths(rank)[step % 2], 40)  # change: slow-rank
        states, _ = model(recording)  # spent: slow-rank
        loss = states.square().mean()
        optimizer.zero_grad()
        loss.backward()  # spent: slow-rank
        optimizer.step()
    print(f"rank {rank} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
