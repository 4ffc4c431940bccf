"""A closure optimizer: forward and backward run inside step()."""

import torch

torch.manual_seed(0)
x = torch.randn(64, 5)
y = x @ torch.randn(5, 1)
weight = torch.zeros(5, 1, requires_grad=True)
optimizer = torch.optim.LBFGS([weight], lr=0.5, max_iter=5)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = ((x @ weight - y) ** 2).mean()
    loss.backward()
    return loss


for _ in range(40):
    loss = optimizer.step(closure)
print(repr(loss.item()), weight.flatten().tolist())
