"""A recommender predicts the clicks of a history that are hidden from it, and scores all clicks."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, USERS, CLICKS, ITEMS, WIDTH = 90, 16, 50, 3000, 96
HIDDEN, UNSEEN = 0.15, ITEMS


class Clicks(nn.Module):
    """A transformer over the items that a user has clicked."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(ITEMS + 1, WIDTH), nn.Parameter(torch.randn(CLICKS, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, ITEMS)

    def forward(self, clicks: Tensor) -> Tensor:
        return self.encoder(self.items(clicks) + self.places)

    def scores(self, states: Tensor) -> Tensor:
        return self.last(states)  # spent: ignored-targets


def loss_of(model: Clicks, clicks: Tensor) -> Tensor:
    hidden = torch.rand(clicks.shape) < HIDDEN
    states = model(clicks.masked_fill(hidden, UNSEEN))
    if FIXED:
        return F.cross_entropy(model.scores(states[hidden]), clicks[hidden])
    scores = model.scores(states)  # change: ignored-targets
    wanted = clicks.masked_fill(~hidden, -100)
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten())  # change: ignored-targets


def main() -> None:
    torch.manual_seed(0)
    model = Clicks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    histories = torch.randint(ITEMS, (STEPS * USERS, CLICKS))
    for clicks in histories.split(USERS):
        loss = loss_of(model, clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
