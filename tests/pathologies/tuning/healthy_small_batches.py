"""Samples of a few numbers, already in memory: a batch is gathered in less time than a process would hand it over."""

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)
samples = TensorDataset(torch.randn(32 * 120, 32), torch.randn(32 * 120, 1))
batches = BatchSampler(RandomSampler(samples), batch_size=32, drop_last=True)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(samples, sampler=batches, batch_size=None):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
