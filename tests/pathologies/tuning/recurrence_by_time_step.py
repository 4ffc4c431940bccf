"""A leaky memory over a sequence, computed one time step after another."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

FIXED = "--fixed" in sys.argv
LENGTH, WIDTH = 96, 64


class LeakyMemory(nn.Module):
    """h[t] = decay * h[t - 1] + (1 - decay) * x[t], along the second dimension."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        apart = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        self.register_buffer("weights", ((1 - decay) * decay ** apart.clamp(min=0)).tril())

    def forward(self, x: Tensor) -> Tensor:
        if FIXED:
            return self.weights @ x
        state = torch.zeros_like(x[:, 0])
        states = []
        for t in range(x.shape[1]):  # spent: many-small-ops  # change: many-small-ops
            state = self.decay * state + (1 - self.decay) * x[:, t]  # spent: many-small-ops
            states.append(state)  # spent: many-small-ops
        return torch.stack(states, dim=1)


torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(12, WIDTH), nn.ReLU(), LeakyMemory(0.9), nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
series, target = torch.randn(80 * 16, LENGTH, 12), torch.randn(80 * 16, LENGTH, 1)
for x, y in DataLoader(TensorDataset(series, target), batch_size=16):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
