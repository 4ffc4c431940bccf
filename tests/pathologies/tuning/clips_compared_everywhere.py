"""Classifies gestures in clips with a non-local block without softmax: each place attends to all others."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIXED = "--fixed" in sys.argv
STEPS, BATCH, FRAMES, SIZE, WIDTH, INNER, CLASSES = 60, 8, 4, 14, 24, 12, 8


class NonLocal(nn.Module):
    """Adds to each place what all places have, by the product of their features."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv3d(WIDTH, INNER, 1) for _ in range(3))
        self.out = nn.Conv3d(INNER, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The clip with what other places have."""
        theta, phi, g = (part(x).flatten(2).transpose(1, 2) for part in (self.theta, self.phi, self.g))
        places = theta.shape[1]
        if FIXED:
            y = theta @ (phi.transpose(1, 2) @ g) / places
        else:
            alike = theta @ phi.transpose(1, 2)  # spent: product-order # change: product-order
            alike = alike / places  # spent: product-order
            y = alike @ g  # spent: product-order
        return x + self.out(y.transpose(1, 2).reshape(len(x), INNER, *x.shape[2:]))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(3, WIDTH, 3, padding=1),
        nn.ReLU(),
        NonLocal(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(WIDTH, CLASSES),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    clips, labels = torch.randn(10, BATCH, 3, FRAMES, SIZE, SIZE), torch.randint(CLASSES, (10, BATCH))
    for step in range(STEPS):
        loss = F.cross_entropy(model(clips[step % 10]), labels[step % 10])
        optimizer.zero_grad()
        loss.backward()  # spent: product-order
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
