"""Spectrograms are fetched one by one from a store that answers late; one worker waits for them all."""

import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv


class Store(Dataset):
    """A store over a network: each read waits some milliseconds for its answer and needs no processor meanwhile."""

    def __len__(self) -> int:
        return 90 * 8

    def __getitem__(self, key: int) -> tuple[Tensor, int]:
        time.sleep(0.006)  # spent: input-bound
        return torch.full((40, 100), float(key % 10)), key % 10


class Speaker(nn.Module):
    """A recurrent classifier of spectrograms, (batch, 40 bands, 100 frames)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(40, 96, batch_first=True)
        self.head = nn.Linear(96, 10)

    def forward(self, bands: Tensor) -> Tensor:
        states, _ = self.encoder(bands.transpose(1, 2))
        return self.head(states[:, -1])


torch.manual_seed(0)
model = Speaker()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Store(), batch_size=8, num_workers=4 if FIXED else 1)  # change: input-bound
for bands, speaker in loader:
    loss = nn.functional.cross_entropy(model(bands), speaker)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
