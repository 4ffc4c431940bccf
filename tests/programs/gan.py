"""Two networks, two optimizers, two backward passes per batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
make = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
judge = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
for_make = torch.optim.Adam(make.parameters(), 1e-3)
for_judge = torch.optim.Adam(judge.parameters(), 1e-3)
criterion = nn.BCEWithLogitsLoss()
for number, (real,) in enumerate(DataLoader(TensorDataset(torch.randn(640, 16)), batch_size=16, shuffle=True)):
    made = make(torch.randn(16, 8))
    loss_judge = criterion(judge(real), torch.ones(16, 1)) + criterion(judge(made.detach()), torch.zeros(16, 1))
    for_judge.zero_grad()
    loss_judge.backward()
    for_judge.step()
    loss_make = criterion(judge(made), torch.ones(16, 1))
    for_make.zero_grad()
    loss_make.backward()
    for_make.step()
    if number % 20 == 0:
        print(number, repr(loss_judge.item()), repr(loss_make.item()))
