"""A training script that first looks whether torch is installed, as many libraries do."""

import importlib.util
import sys

if importlib.util.find_spec("torch") is None:
    raise SystemExit("this script needs torch")

import torch
from torch import nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, CLASSES = 80, 256, 20


def confusion(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How often each class was taken for each other one."""
    if FIXED:
        pairs = torch.bincount(target * CLASSES + predicted, minlength=CLASSES * CLASSES)
        return pairs.reshape(CLASSES, CLASSES).float()
    table = torch.zeros(CLASSES, CLASSES)
    for right, guess in zip(target, predicted, strict=True):  # spent: many-small-ops # change: many-small-ops
        table[right, guess] += 1  # spent: many-small-ops # change: many-small-ops
    return table


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = torch.zeros(CLASSES, CLASSES)
for _ in range(STEPS):
    x, y = torch.randn(BATCH, 64), torch.randint(CLASSES, (BATCH,))
    scores = model(x)
    loss = nn.functional.cross_entropy(scores, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += confusion(scores.detach().argmax(1), y)
print(f"loss {loss.item():.4f}, right {total.trace() / total.sum():.3f}")
