"""A plain loop with a validation after each epoch, a scheduler and a checkpoint."""

import io

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
data = TensorDataset(torch.randn(320, 16), torch.randint(0, 4, (320,)))
train, valid = random_split(data, [240, 80])
train_loader = DataLoader(train, batch_size=8, shuffle=True)
valid_loader = DataLoader(valid, batch_size=16)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
for epoch in range(2):
    model.train()
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in valid_loader)
    torch.save(model.state_dict(), io.BytesIO())
    print(epoch, repr(loss.item()), right)
