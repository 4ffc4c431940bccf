"""Plain gradient descent on large weights with small batches: the update reads and writes each weight once."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(80):
    x, y = torch.randn(16, 1024), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
