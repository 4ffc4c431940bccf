"""A click model: two large embedding tables and a small network, trained with Adam."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
USERS, ITEMS, WIDTH, BATCH, STEPS = 60_000, 30_000, 32, 256, 60


class Clicks(nn.Module):
    """The logit that a user clicks an item."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.head(torch.cat([self.user(users), self.item(items)], dim=1)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    model = Clicks()
    if FIXED:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # change: unfused-optimizer
    users, items = torch.randint(USERS, (STEPS, BATCH)), torch.randint(ITEMS, (STEPS, BATCH))
    clicked = torch.randint(2, (STEPS, BATCH)).float()
    for user, item, click in zip(users, items, clicked, strict=True):
        loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), click)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # spent: unfused-optimizer
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
