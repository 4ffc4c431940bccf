"""Baskets of a shop and the next product, whose picture features go through a network."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, PRODUCTS, FEATURES, WIDTH = 90, 256, 2_400, 96, 48


class Shop(nn.Module):
    """Scores the products of a batch for each of its baskets."""

    def __init__(self, pictures: Tensor) -> None:
        super().__init__()
        self.register_buffer("pictures", pictures)
        self.looks = nn.Sequential(nn.Linear(FEATURES, 192), nn.ReLU(), nn.Linear(192, WIDTH))
        self.basket = nn.Sequential(nn.EmbeddingBag(PRODUCTS, WIDTH), nn.Linear(WIDTH, WIDTH))

    def products(self, numbers: Tensor) -> Tensor:
        """The vectors of some products."""
        if FIXED:
            return self.looks(self.pictures[numbers])
        return self.looks(self.pictures)[numbers]  # spent: unused-rows # change: unused-rows

    def forward(self, baskets: Tensor, numbers: Tensor) -> Tensor:
        """The loss of telling the next product from the others of the batch."""
        scores = self.basket(baskets) @ self.products(numbers).T
        return F.cross_entropy(scores, torch.arange(len(numbers)))


def main() -> None:
    torch.manual_seed(0)
    shop = Shop(torch.randn(PRODUCTS, FEATURES))
    optimizer = torch.optim.AdamW(shop.parameters(), lr=1e-3, fused=True)
    for _ in range(STEPS):
        baskets, numbers = torch.randint(PRODUCTS, (BATCH, 12)), torch.randint(PRODUCTS, (BATCH,))
        loss = shop(baskets, numbers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
