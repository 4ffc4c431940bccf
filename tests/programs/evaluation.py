"""Evaluation only: no backward, no optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(16, 4).eval()
right = 0
with torch.inference_mode():
    for x, y in DataLoader(TensorDataset(torch.randn(400, 16), torch.randint(0, 4, (400,))), batch_size=8):
        right += int((model(x).argmax(1) == y).sum())
print(right)
