"""Many short epochs, each of which starts its loader workers anew."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv


class Readings(Dataset):
    """A few hundred readings of 128 sensors."""

    def __init__(self) -> None:
        self.readings = torch.randn(192, 512, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.readings)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        reading = self.readings[index]
        return reading, reading.sum() * 0.01


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1280), nn.ReLU(), nn.Linear(1280, 1280), nn.ReLU(), nn.Linear(1280, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Readings(), batch_size=32, num_workers=1, persistent_workers=FIXED)  # change: input-bound
for _epoch in range(16):
    for readings, target in loader:  # spent: input-bound
        loss = nn.functional.mse_loss(model(readings).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.4f}")
