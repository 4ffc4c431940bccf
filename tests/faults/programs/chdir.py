"""A program that changes its folder before and while it trains, as Hydra does."""

import hashlib
import os

import torch

os.makedirs("outputs/now")
os.chdir("outputs")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    if step == 10:
        os.chdir("now")
    optimizer.zero_grad()
    model(torch.randn(4, 4)).pow(2).mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
print(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest(), sorted(os.listdir()))
