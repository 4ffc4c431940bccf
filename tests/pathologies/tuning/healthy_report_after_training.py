"""A short training, after which the model is evaluated in Python and the report waits for a slow disk."""

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(80):
    x, y = torch.randn(256, 256), torch.randint(10, (256,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

wrong: dict[int, int] = {}
with torch.no_grad():
    for x in torch.randn(8000, 256):
        guess = int(model(x).argmax())
        wrong[guess] = wrong.get(guess, 0) + 1
time.sleep(2)
print(f"loss {loss.item():.4f}, {sorted(wrong.items())}")
