"""A loop that reads from two worker processes, and ends with an error of its own."""

import hashlib

import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(torch.randn(80, 4), batch_size=4, num_workers=2):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
print(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
raise ValueError("the program's own error")
