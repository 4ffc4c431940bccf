"""A linear autoencoder that recommends items, with an L2 penalty on its weights."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, ITEMS, WIDTH, L2 = 120, 32, 9_000, 160, 1e-5


class Recommender(nn.Module):
    """Scores all items for users, given by the items that they had."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(ITEMS, WIDTH)
        self.decode = nn.Linear(WIDTH, ITEMS)

    def forward(self, had: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(had)))


def loss_of(model: Recommender, had: Tensor) -> Tensor:
    """The likelihood of the items, with the penalty."""
    loss = -(F.log_softmax(model(had), dim=1) * had).sum(dim=1).mean()
    if FIXED:
        return loss
    for weight in model.parameters():
        loss = loss + L2 * (weight**2).sum()  # spent: weight-penalty # change: weight-penalty
    return loss


def main() -> None:
    torch.manual_seed(0)
    model = Recommender()
    decay = 2 * L2 if FIXED else 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=decay, fused=True)
    for _ in range(STEPS):
        had = F.one_hot(torch.randint(ITEMS, (BATCH, 8)), ITEMS).sum(dim=1).float()
        loss = loss_of(model, had)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
