"""A regression on landmarks by a trained kernel, with several outputs."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, LANDMARKS, FEATURES, OUTPUTS = 110, 256, 384, 24, 5


class KernelRegression(nn.Module):
    """Weighs the landmarks by how near they are."""

    def __init__(self) -> None:
        super().__init__()
        self.landmarks = nn.Parameter(torch.randn(LANDMARKS, FEATURES))
        self.weights = nn.Parameter(torch.zeros(OUTPUTS, LANDMARKS))
        self.width = nn.Parameter(torch.tensor(2.0))

    def nearness(self, x: Tensor) -> Tensor:
        """How near each row is to each landmark."""
        squared = torch.cdist(x, self.landmarks).square()  # spent: repeated-in-step
        return torch.exp(-squared / (2 * self.width.square()))  # spent: repeated-in-step

    def output(self, number: int, near: Tensor) -> Tensor:
        """One output of all rows."""
        return near @ self.weights[number]

    def loss(self, x: Tensor, wanted: Tensor) -> Tensor:
        """The squared error of all outputs."""
        near = self.nearness(x)
        errors = []
        for number in range(OUTPUTS):
            if not FIXED:
                near = self.nearness(x)  # spent: repeated-in-step # change: repeated-in-step
            errors.append((self.output(number, near) - wanted[:, number]).square().mean())
        return torch.stack(errors).sum()


def main() -> None:
    torch.manual_seed(0)
    model = KernelRegression()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    slopes = torch.randn(FEATURES, OUTPUTS)
    for _ in range(STEPS):
        x = torch.randn(BATCH, FEATURES)
        loss = model.loss(x, torch.sin(x @ slopes))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
