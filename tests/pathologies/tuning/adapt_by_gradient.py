"""Meta-learning of the first order: a copy of the weights is adapted to a task by gradients taken by hand."""

import sys

import torch
from torch import Tensor, nn
from torch.func import functional_call

FIXED = "--fixed" in sys.argv
STEPS, TASK, LAYERS, WIDTH, RATE = 60, 16, 50, 32, 0.01


def adapted(weights: dict[str, Tensor], gradients: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The weights after one step of gradient descent with decay."""
    if FIXED:
        values, slopes = list(weights.values()), torch._foreach_clamp_max(gradients, 1.0)
        torch._foreach_clamp_min_(slopes, -1.0)
        values = torch._foreach_sub(torch._foreach_mul(values, 0.999), slopes, alpha=RATE)
        return dict(zip(weights, values, strict=True))
    new = {}
    for name, slope in zip(weights, gradients, strict=True):  # spent: many-small-ops # change: many-small-ops
        new[name] = 0.999 * weights[name] - RATE * slope.clamp(-1, 1)  # spent: many-small-ops # change: many-small-ops
    return new


def main() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    for _ in range(STEPS):
        x, slope = torch.randn(TASK, WIDTH), torch.randn(WIDTH)
        fast = {name: value.requires_grad_() for name, value in weights.items()}
        loss = (functional_call(model, fast, (x,)).squeeze(1) - x @ slope).square().mean()
        gradients = torch.autograd.grad(loss, list(fast.values()))
        with torch.no_grad():
            weights = adapted(fast, gradients)  # spent: many-small-ops
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
