"""A sequence model whose step also computes an edit distance in pure Python."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FIXED = "--fixed" in sys.argv
LENGTH, VOCABULARY = 40, 30


def edit_distance(one: list[int], other: list[int]) -> int:
    """Fewest insertions, deletions and replacements between two sequences."""
    before = list(range(len(other) + 1))
    for row, left in enumerate(one, start=1):
        now = [row]
        for column, right in enumerate(other, start=1):
            least = min(
                before[column] + 1, now[-1] + 1, before[column - 1] + (left != right)
            )  # spent: python-bound  # change: python-bound
            now.append(least)  # spent: python-bound  # change: python-bound
        before = now
    return before[-1]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 128), nn.Linear(256, VOCABULARY)
        self.layers = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


torch.manual_seed(0)
text = torch.randint(0, VOCABULARY, (70 * 16, LENGTH))
targets = [row.tolist() for row in text]
model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
distance = 0.0
errors = torch.zeros(())
for step, tokens in enumerate(DataLoader(text, batch_size=16)):
    scores = model(tokens)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if FIXED:
        errors += (scores.argmax(-1) != tokens).float().mean()
    else:
        for row in range(16):
            distance += edit_distance(
                targets[step * 16 + row], targets[step * 16]
            )  # spent: python-bound  # change: python-bound
print(f"loss {loss.item():.4f} distance {distance} errors {errors.item():.3f}")
