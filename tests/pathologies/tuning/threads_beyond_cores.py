"""A small model on eight times as many threads as there are cores."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
CORES = len(os.sched_getaffinity(0))
torch.set_num_threads(1 if FIXED else 8 * CORES)  # spent: thread-counts  # change: thread-counts


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 512), nn.Tanh(), nn.LayerNorm(512), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(60, 256, 256), torch.randint(0, 8, (60, 256)))
    for x, y in DataLoader(data, batch_size=None):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
