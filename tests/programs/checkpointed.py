"""Activation checkpointing, dropout, loader workers, a scheduler per step, saving on the way."""

import io

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


if __name__ == "__main__":
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.ReLU()) for _ in range(3))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for number, x in enumerate(DataLoader(Noise(), batch_size=4, num_workers=2)):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        loss = x.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if number % 20 == 0:
            torch.save(blocks.state_dict(), io.BytesIO())
    print(repr(loss.item()))
