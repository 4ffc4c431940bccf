"""torch.compile, and how many graphs it made of the model."""

import torch
import torch._dynamo
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    loss = compiled(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(repr(loss.item()), torch._dynamo.utils.counters["stats"]["unique_graphs"])
