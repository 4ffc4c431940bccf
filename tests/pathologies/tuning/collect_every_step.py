"""A loop that collects garbage after every step, to be safe."""

import gc
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv


class Unet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 24, 4, stride=2, padding=1)
        self.deep = nn.Conv2d(24, 24, 3, padding=1)
        self.up = nn.ConvTranspose2d(24, 1, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(x).relu()
        return self.up(y + self.deep(y).relu())


def main() -> None:
    torch.manual_seed(0)
    clean = torch.rand(80 * 8, 1, 48, 48)
    model = Unet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for noisy, wanted in DataLoader(TensorDataset(clean + 0.1 * torch.randn_like(clean), clean), batch_size=8):
        loss = nn.functional.mse_loss(model(noisy), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del noisy, wanted
        if not FIXED:
            gc.collect()  # spent: gc-pauses  # change: gc-pauses
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
