"""A plain loop."""

import atexit
import hashlib

import torch
from torch.utils.data import DataLoader

atexit.register(print, "the program's atexit handler")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(torch.randn(80, 4), batch_size=4):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
print(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
raise SystemExit(3)
