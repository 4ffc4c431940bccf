"""A small image classifier whose augmentation runs in the training process, because the loader has no workers."""

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv


class Photos(Dataset):
    """Photos of 64 x 64 with an augmentation per sample: noise, blur in the frequency domain, flip, normalisation."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.draw = np.random.default_rng(0)
        self.photos = self.draw.random((32, 3, 64, 64), dtype=np.float32)
        self.blur = np.exp(-np.linspace(0, 3, 64 * 33, dtype=np.float32)).reshape(64, 33)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        photo = self.photos[index % 32]
        noisy = photo + self.draw.normal(0, 0.1, photo.shape)
        photo = np.fft.irfft2(np.fft.rfft2(noisy) * self.blur)  # spent: input-bound
        if index % 2:
            photo = photo[:, :, ::-1]
        return torch.from_numpy(((photo - photo.mean()) / photo.std()).astype(np.float32)), index % 10


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 24, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(24, 96, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(1536, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
workers = {"num_workers": 1, "persistent_workers": True} if FIXED else {"num_workers": 0}  # change: input-bound
loader = DataLoader(Photos(40 * 16), batch_size=16, **workers)  # change: input-bound
for _ in range(2):
    for photos, labels in loader:
        loss = nn.functional.cross_entropy(model(photos), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.4f}")
