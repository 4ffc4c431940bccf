"""A detector's loss that compares boxes picture by picture, in a loop over the batch."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
BATCH, BOXES = 48, 8


def area(sides: Tensor) -> Tensor:
    """Width times height; not prod(), whose backward pass asks the device for zeros."""
    return sides[..., 0] * sides[..., 1]


def overlap(found: Tensor, wanted: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 4) given by two corners."""
    low = torch.maximum(found[..., :2], wanted[..., :2])
    high = torch.minimum(found[..., 2:], wanted[..., 2:])
    shared = area((high - low).clamp(min=0))
    return shared / (area(found[..., 2:] - found[..., :2]) + area(wanted[..., 2:] - wanted[..., :2]) - shared)


def box_loss(found: Tensor, wanted: Tensor) -> Tensor:
    """1 - the mean overlap."""
    if FIXED:
        return 1 - overlap(found, wanted).mean()
    total = torch.zeros(())
    for one, other in zip(found, wanted, strict=True):  # spent: loop-over-samples  # change: loop-over-samples
        total = total + overlap(one, other).mean()
    return 1 - total / len(found)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, BOXES * 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
features, corners = torch.randn(80, BATCH, 128), torch.rand(80, BATCH, BOXES, 2)
boxes = torch.cat([corners, corners + 0.3], dim=-1)
for x, wanted in DataLoader(TensorDataset(features, boxes), batch_size=None):
    corner, size = model(x).view(-1, BOXES, 4).split(2, dim=-1)
    loss = box_loss(torch.cat([corner, corner + size.exp()], dim=-1), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
