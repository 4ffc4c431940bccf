"""Prices of homes from their numbers and their postcode, which goes into the first layer as one of 6,000 columns."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, NUMBERS, POSTCODES, WIDTH = 90, 512, 24, 6000, 192


class Prices(nn.Module):
    """A network over numbers and a postcode."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(POSTCODES, WIDTH, sparse=True) if FIXED else nn.Linear(POSTCODES, WIDTH, bias=False)
        self.numbers = nn.Linear(NUMBERS, WIDTH)
        self.rest = nn.Sequential(nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))

    def forward(self, numbers: Tensor, postcodes: Tensor) -> Tensor:
        """One price per home."""
        given = postcodes if FIXED else F.one_hot(postcodes, POSTCODES).float()  # change: sparse-as-dense
        places = self.places(given)  # spent: sparse-as-dense # change: sparse-as-dense
        return self.rest(self.numbers(numbers) + places).squeeze(-1)


def main() -> None:
    torch.manual_seed(0)
    model = Prices()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    numbers, prices = torch.randn(40, BATCH, NUMBERS), torch.randn(40, BATCH)
    postcodes = torch.randint(POSTCODES, (40, BATCH))
    for step in range(STEPS):
        loss = F.mse_loss(model(numbers[step % 40], postcodes[step % 40]), prices[step % 40])
        optimizer.zero_grad()
        loss.backward()  # spent: sparse-as-dense
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
