"""House prices from many columns: all rows at once, with L-BFGS."""

import torch
from torch import Tensor, nn

STEPS, HOUSES, COLUMNS = 70, 20_000, 300

torch.manual_seed(0)
columns = torch.randn(HOUSES, COLUMNS)
signal = columns[:, :20].sum(1, keepdim=True) + columns[:, 20:40].square().sum(1, keepdim=True)
prices = signal / 20 + torch.randn(HOUSES, 1)
model = nn.Sequential(nn.Linear(COLUMNS, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=5)


def closure() -> Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(columns), prices)
    loss.backward()
    return loss


for step in range(STEPS):
    loss = optimizer.step(closure)
    if step % 15 == 0:
        print(f"{step}: {loss.item():.5f}")
print(f"last {loss.item():.5f}")
