"""Two processes that accumulate twelve pieces and average their gradients once per update; one of them prints."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

UPDATES, PIECES = 60, 12


def main() -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draws = torch.Generator().manual_seed(rank)
    inputs = torch.randn(UPDATES, PIECES, 128, 64, generator=draws)
    labels = (inputs[..., 0] > 0).long()
    for update in range(UPDATES):
        optimizer.zero_grad()
        with model.no_sync():
            for piece in range(PIECES - 1):
                loss = nn.functional.cross_entropy(model(inputs[update, piece]), labels[update, piece])
                (loss / PIECES).backward()
        loss = nn.functional.cross_entropy(model(inputs[update, -1]), labels[update, -1])
        (loss / PIECES).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        if rank == 0 and (update + 1) % 30 == 0:
            print(f"{update + 1}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
