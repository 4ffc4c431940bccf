"""A model made double because numpy's features came in float64."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv


def features(rows: int) -> np.ndarray:
    """A table in batches of 64, as numpy makes it: float64."""
    return np.random.default_rng(0).normal(size=(rows // 64, 64, 128))


def main() -> None:
    torch.manual_seed(0)
    table = torch.from_numpy(features(80 * 64))  # change: float64-in-step
    if FIXED:
        table = table.float()
    target = table[..., :1].tanh()
    model = nn.Sequential(nn.Linear(128, 1280), nn.ReLU(), nn.Linear(1280, 1280), nn.ReLU(), nn.Linear(1280, 1))
    model = model.to(table.dtype)  # change: float64-in-step
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(TensorDataset(table, target), batch_size=None):
        loss = nn.functional.mse_loss(model(x), y)  # spent: float64-in-step
        optimizer.zero_grad()
        loss.backward()  # spent: float64-in-step
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
