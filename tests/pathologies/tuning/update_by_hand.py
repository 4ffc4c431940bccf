"""A deep residual network whose weights are updated by hand: gradient descent with momentum and weight decay."""

import sys

import torch
from torch import Tensor, nn

FIXED = "--fixed" in sys.argv
STEPS, BATCH, WIDTH, BLOCKS, RATE = 150, 16, 32, 60, 1e-3


class Block(nn.Module):
    """A residual layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x)).relu()


@torch.no_grad()
def update(weights: list[Tensor], momenta: list[Tensor]) -> None:
    """Move each weight against its gradient."""
    if FIXED:
        gradients = [weight.grad for weight in weights]
        torch._foreach_add_(gradients, weights, alpha=1e-4)
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, gradients)
        torch._foreach_add_(weights, momenta, alpha=-RATE)
        return
    for weight, momentum in zip(weights, momenta, strict=True):  # spent: many-small-ops # change: many-small-ops
        gradient = weight.grad + 1e-4 * weight  # spent: many-small-ops # change: many-small-ops
        momentum.copy_(0.9 * momentum + gradient)  # spent: many-small-ops # change: many-small-ops
        weight.sub_(RATE * momentum)  # spent: many-small-ops # change: many-small-ops


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 1))
    weights = list(model.parameters())
    momenta = [torch.zeros_like(weight) for weight in weights]
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        model.zero_grad()
        loss.backward()
        update(weights, momenta)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
