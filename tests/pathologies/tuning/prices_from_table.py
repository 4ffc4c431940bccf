"""A forecast of prices; the table that they are read from was made with numpy."""

import sys

import numpy as np
import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
DAYS, SERIES, WINDOW, STEPS, BATCH = 400, 64, 30, 80, 64


def read_table() -> Tensor:
    """The price of each day and series."""
    moves = np.random.default_rng(0).normal(0, 0.01, (DAYS, SERIES))
    if FIXED:
        return torch.from_numpy(moves.cumsum(0).astype(np.float32))
    return torch.from_numpy(moves.cumsum(0))  # change: float64-in-step


class Forecast(nn.Module):
    """The next day's prices from a window of days."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.mix = nn.Linear(WINDOW * SERIES, 256)
        self.out = nn.Linear(256, SERIES)
        self.to(like.dtype)

    def forward(self, window: Tensor) -> Tensor:
        hidden = self.mix(window.flatten(1)).relu()  # spent: float64-in-step
        return self.out(hidden)  # spent: float64-in-step


def main() -> None:
    torch.manual_seed(0)
    table = read_table()
    model = Forecast(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        starts = torch.randint(DAYS - WINDOW, (BATCH,))
        windows = torch.stack([table[start : start + WINDOW] for start in starts.tolist()])
        loss = (model(windows) - table[starts + WINDOW]).square().mean()  # spent: float64-in-step
        optimizer.zero_grad()
        loss.backward()  # spent: float64-in-step
        optimizer.step()  # spent: float64-in-step
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
