"""A training that runs in a thread, as a notebook's or a server's does, while the main thread waits for it."""

import sys
import threading

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, TAGS = 80, 64, 12


def f_score(predicted: Tensor, target: Tensor) -> float:
    """The F score over the tags of a batch."""
    if FIXED:
        hits = float((predicted & target).sum())
        return 2 * hits / max(1.0, float(predicted.sum() + target.sum()))
    hits = guesses = wanted = 0
    for row, right in zip(
        predicted.tolist(), target.tolist(), strict=True
    ):  # spent: python-bound # change: python-bound
        for tag in range(TAGS):  # spent: python-bound # change: python-bound
            hits += row[tag] and right[tag]  # spent: python-bound # change: python-bound
            guesses += row[tag]  # spent: python-bound # change: python-bound
            wanted += right[tag]  # spent: python-bound # change: python-bound
    return 2 * hits / max(1, guesses + wanted)


def train() -> None:
    """Train a tagger."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, TAGS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, y = torch.randn(BATCH * 16, 32), torch.rand(BATCH * 16, TAGS) < 0.3
        scores = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        score = f_score(scores > 0, y)  # spent: python-bound # change: python-bound
    print(f"loss {loss.item():.4f}, F {score:.3f}")


if __name__ == "__main__":
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
