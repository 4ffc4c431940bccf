"""An autoencoder that prints its loss tensor in every step."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
EVERY = 40


class Autoencoder(nn.Module):
    """Squeezes 512 numbers through 16."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 16))
        self.up = nn.Sequential(nn.Linear(16, 1024), nn.GELU(), nn.Linear(1024, 512))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def main() -> None:
    torch.manual_seed(0)
    rows = torch.randn(80 * 64, 512)
    model = Autoencoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, batch in enumerate(DataLoader(rows, batch_size=64)):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not FIXED:
            print("step", step, "loss", loss)  # spent: sync-in-step  # change: sync-in-step
        elif step % EVERY == EVERY - 1:
            print("step", step, "loss", loss.item())


if __name__ == "__main__":
    main()
