"""Batches come from a hand-written generator that parses lines of text between two steps."""

import random
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, COLUMNS = 80, 64, 256


def written() -> list[str]:
    """A table as text, as it lies in a file."""
    draw = random.Random(0)
    return [",".join(f"{draw.random():.5f}" for _ in range(COLUMNS)) for _ in range(512)]


def batches(lines: list[str]) -> Iterator[Tensor]:
    """Batches of the table, round and round."""
    table = torch.tensor([[float(cell) for cell in line.split(",")] for line in lines]) if FIXED else None
    for step in range(STEPS):
        start = step * BATCH % len(lines)
        if table is not None:
            yield table[start : start + BATCH]
        else:
            rows = lines[start : start + BATCH]
            yield torch.tensor(
                [[float(cell) for cell in line.split(",")] for line in rows]
            )  # spent: input-bound  # change: input-bound


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(COLUMNS, 768), nn.Tanh(), nn.Linear(768, 512), nn.Tanh(), nn.Linear(512, COLUMNS))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for rows in batches(written()):
    loss = nn.functional.mse_loss(model(rows), rows)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
