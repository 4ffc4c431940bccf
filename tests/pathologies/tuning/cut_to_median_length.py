"""Texts are cut to twice the median length of all texts so far."""

import random
import statistics
import sys
from collections import deque

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH = 150, 256, 6


def main() -> None:
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lengths: deque[int] = deque(maxlen=2 * BATCH if FIXED else None)  # change: growing-step
    for _ in range(STEPS):
        lengths.extend(random.choices(range(3, 12), k=BATCH))
        longest = 2 * int(statistics.median(lengths))  # spent: growing-step
        texts = torch.randn(BATCH, longest, WIDTH)
        loss = (model(texts).squeeze(2) - texts.sum(2)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
