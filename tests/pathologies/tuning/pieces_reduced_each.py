"""Two processes that accumulate eight pieces per update; the gradients of each piece are averaged over both."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

fixed = "--fixed" in sys.argv
pieces, piece_rows, updates = 8, 32, 80


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def batches(rank):
    """Rows of an endless table: 96 columns and the value to predict."""
    rng = torch.Generator().manual_seed(rank)
    truth = torch.randn(96, generator=torch.Generator().manual_seed(99))
    while True:
        x = torch.randn(piece_rows, 96, generator=rng)
        yield x, torch.tanh(x @ truth / 10)


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 256), *[Block(256) for _ in range(4)], nn.LayerNorm(256), nn.Linear(256, 1))
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = batches(rank)
    for update in range(updates):
        optimizer.zero_grad()
        for piece in range(pieces):
            x, y = next(rows)
            last = piece == pieces - 1
            with model.no_sync() if fixed and not last else contextlib.nullcontext():  # change: exposed-communication
                loss = nn.functional.mse_loss(model(x).squeeze(1), y) / pieces
                loss.backward()  # spent: exposed-communication # change: exposed-communication
        optimizer.step()
        if rank == 0 and update % 40 == 39:
            print(f"update {update + 1}: {loss.item() * pieces:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
