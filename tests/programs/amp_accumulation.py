"""Mixed precision, gradient scaling, clipping, and two micro-batches per optimizer step; no DataLoader."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for number in range(60):
    x, y = torch.randn(8, 32), torch.randint(0, 10, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y) / 2
    scaler.scale(loss).backward()
    if number % 2:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
print(repr(loss.item()), repr(norm.item()))
