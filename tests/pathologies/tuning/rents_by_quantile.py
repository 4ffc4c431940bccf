"""Rents are predicted with their spread; the known ones are a column of a table."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, COLUMNS, WIDTH = 90, 768, 40, 256
QUANTILES = (0.1, 0.5, 0.9)


def loss_of(predicted: Tensor, rents: Tensor) -> Tensor:
    """The mean pinball loss of all quantiles."""
    if FIXED:
        rents = rents.squeeze(-1)
    total = predicted.new_zeros(())
    for at, quantile in enumerate(QUANTILES):
        above = rents - predicted[:, at]  # spent: unintended-broadcast # change: unintended-broadcast
        total = total + torch.maximum(quantile * above, (quantile - 1) * above).mean()  # spent: unintended-broadcast
    return total


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(COLUMNS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, len(QUANTILES))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(STEPS):
        flats = torch.randn(BATCH, COLUMNS)
        rents = flats[:, :5].sum(1, keepdim=True)  # change: unintended-broadcast
        loss = loss_of(model(flats), rents)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
