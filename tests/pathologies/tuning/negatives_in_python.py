"""Word vectors whose negative examples are drawn word by word with Python's random numbers."""

import random
import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, NEGATIVES, WORDS, WIDTH = 90, 512, 12, 5000, 64


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Embedding(WORDS, WIDTH, sparse=True), nn.Embedding(WORDS, WIDTH, sparse=True)

    def forward(self, words: Tensor, near: Tensor, far: Tensor) -> Tensor:
        at = self.inner(words)
        close = (at * self.outer(near)).sum(-1)
        apart = (self.outer(far) @ at.unsqueeze(-1)).squeeze(-1)
        return -(nn.functional.logsigmoid(close).mean() + nn.functional.logsigmoid(-apart).mean())


def negatives(draw: random.Random, near: list[int]) -> Tensor:
    """NEGATIVES other words for each of the words, (BATCH, NEGATIVES)."""
    if FIXED:
        return torch.randint(0, WORDS, (BATCH, NEGATIVES))
    rows = []
    for word in near:  # spent: python-bound  # change: python-bound
        row = [draw.randrange(WORDS) for _ in range(NEGATIVES)]  # spent: python-bound  # change: python-bound
        rows.append([other if other != word else 0 for other in row])  # spent: python-bound  # change: python-bound
    return torch.tensor(rows)


torch.manual_seed(0)
draw = random.Random(0)
model = Vectors()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pairs = torch.randint(0, WORDS, (STEPS, 2, BATCH))
known = pairs[:, 1].tolist()
for step, (words, near) in enumerate(pairs):
    loss = model(words, near, negatives(draw, known[step]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
