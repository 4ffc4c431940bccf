"""Adam over some hundred small parameters, told to update them one after another."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv


class Residual(nn.Module):
    """A gated residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.value(y) * self.gate(y).sigmoid()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), *(Residual(64) for _ in range(40)), nn.Linear(64, 1))
    if FIXED:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)  # change: unfused-optimizer
    inputs, target = torch.randn(80 * 8, 20), torch.randn(80 * 8, 1)
    for x, y in DataLoader(TensorDataset(inputs, target), batch_size=8):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # spent: unfused-optimizer
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
