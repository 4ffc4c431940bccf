"""An optimizer of one's own (Lion) that updates one parameter after another with single ops."""

import sys
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.momenta = {p: torch.zeros_like(p) for group in self.param_groups for p in group["params"]}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        lr = self.param_groups[0]["lr"]
        params = self.param_groups[0]["params"]
        if FIXED:
            momenta = [self.momenta[p] for p in params]
            grads = [p.grad for p in params]
            update = torch._foreach_lerp(momenta, grads, 0.1)
            torch._foreach_sign_(update)
            torch._foreach_add_(params, update, alpha=-lr)
            torch._foreach_lerp_(momenta, grads, 0.01)
            return
        for p in params:  # spent: many-small-ops  # change: many-small-ops
            momentum = self.momenta[p]  # spent: many-small-ops
            update = (momentum * 0.9 + p.grad * 0.1).sign()  # spent: many-small-ops
            p.mul_(1 - lr * 0.01)  # spent: many-small-ops
            p.add_(update * -lr)  # spent: many-small-ops
            momentum.mul_(0.99).add_(p.grad * 0.01)  # spent: many-small-ops


torch.manual_seed(0)
layers = [layer for _ in range(50) for layer in (nn.Linear(48, 48), nn.LayerNorm(48), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(48, 3))
optimizer = Lion(model.parameters(), lr=1e-3)
inputs, labels = torch.randn(90 * 16, 48), torch.arange(90 * 16) % 3
for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=16):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
