"""The next article of a basket: sums of sparse embeddings, whose table is updated row by row."""

import torch
from torch import Tensor, nn

STEPS, BATCH, ARTICLES, WIDTH, BASKET = 130, 1024, 200_000, 48, 24


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ARTICLES, WIDTH, mode="mean", sparse=True)
        self.deep = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 300))

    def forward(self, baskets: Tensor) -> Tensor:
        return self.deep(self.bag(baskets))


def main() -> None:
    torch.manual_seed(0)
    model = Recommender()
    table = torch.optim.SGD(model.bag.parameters(), lr=0.5)
    deep = torch.optim.AdamW(model.deep.parameters(), lr=1e-3, fused=True)
    baskets = torch.randint(ARTICLES, (40 * BATCH, BASKET))
    shelves = baskets[:, 0] % 300
    for step in range(STEPS):
        rows = slice(step % 40 * BATCH, (step % 40 + 1) * BATCH)
        loss = nn.functional.cross_entropy(model(baskets[rows]), shelves[rows])
        table.zero_grad()
        deep.zero_grad()
        loss.backward()
        table.step()
        deep.step()
        if step % 40 == 0:
            print(f"{step}: {loss.item():.4f}")
    print(f"last {loss.item():.4f}")


if __name__ == "__main__":
    main()
