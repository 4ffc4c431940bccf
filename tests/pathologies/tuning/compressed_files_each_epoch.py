"""Every sample is a compressed file, opened and inflated again in every epoch."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv


class Scans(Dataset):
    """Volumes of 16 x 48 x 48, one .npz each."""

    def __init__(self, folder: Path, count: int) -> None:
        self.paths = [folder / f"{number}.npz" for number in range(count)]
        draw = np.random.default_rng(0)
        for path in self.paths:
            np.savez_compressed(path, volume=draw.integers(0, 40, (1, 16, 48, 48)).astype(np.float32))
        self.volumes = [torch.from_numpy(np.load(path)["volume"]) for path in self.paths] if FIXED else None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.volumes is not None:
            return self.volumes[index], index % 2
        volume = np.load(self.paths[index])["volume"]  # spent: input-bound  # change: input-bound
        return torch.from_numpy(volume), index % 2


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv3d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
)
with tempfile.TemporaryDirectory() as folder:
    scans = Scans(Path(folder), 80)
    loader = DataLoader(scans, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    model(torch.zeros(1, 1, 16, 48, 48))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _epoch in range(8):
        for volumes, found in loader:
            loss = nn.functional.cross_entropy(model(volumes), found)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(f"loss {loss.item():.4f}")
