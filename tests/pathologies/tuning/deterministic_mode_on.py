"""Deterministic mode left on after a debugging session: every buffer made uninitialised is filled before its use."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
if not FIXED:
    torch.use_deterministic_algorithms(True)  # spent: deterministic-mode  # change: deterministic-mode
ROOM, WIDTH, LAYERS = 8192, 128, 6


class Memory(nn.Module):
    """Each layer puts the states of its sequence into a cache with room for the longest one, and reads a mean back."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x).relu()
            cache = y.new_empty(len(y), ROOM, WIDTH)  # spent: deterministic-mode
            cache[:, : y.shape[1]] = y.detach()
            x = x + y + cache[:, : y.shape[1]].mean(1, keepdim=True)
        return self.head(x.mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Memory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for x in DataLoader(torch.randn(70 * 4, 64, WIDTH), batch_size=4):
        loss = nn.functional.cross_entropy(model(x), x[:, 0, 0].gt(0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
