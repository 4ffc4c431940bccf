"""A model that works out the angles of its positions anew for every token of every layer."""

import math
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
WIDTH, LENGTH, VOCABULARY = 64, 48, 100


def angles(position: int) -> list[float]:
    """Sines and cosines of one position."""
    rates = [10000 ** (-2 * number / WIDTH) for number in range(WIDTH // 2)]  # spent: unexpected-call-count
    sines = [math.sin(position * rate) for rate in rates]  # spent: unexpected-call-count
    return sines + [math.cos(position * rate) for rate in rates]  # spent: unexpected-call-count


ONCE = torch.tensor([angles(position) for position in range(LENGTH)])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        positions = range(x.shape[1])
        where = (
            ONCE if FIXED else torch.tensor([angles(t) for t in positions])
        )  # spent: unexpected-call-count  # change: unexpected-call-count
        return x + self.mix(self.norm(x + where)).relu()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *(Layer() for _ in range(6)), nn.Linear(WIDTH, VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for tokens in DataLoader(torch.randint(0, VOCABULARY, (80 * 4, LENGTH)), batch_size=4):
        scores = model(tokens)
        loss = nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
