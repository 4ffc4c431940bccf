"""A convolutional network fed by a worker that keeps ahead of it."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Pictures of 64 x 64 with a flip, a shift and normalisation."""

    def __init__(self, length: int) -> None:
        self.pictures = np.random.default_rng(0).random((64, 3, 64, 64), dtype=np.float32)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = np.roll(self.pictures[index % 64], index % 5, axis=2)
        picture = picture[:, :, ::-1] if index % 2 else picture
        return torch.from_numpy((picture - picture.mean()) / picture.std()), index % 10


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(48 * 16, 10),
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Pictures(60 * 16), batch_size=16, num_workers=1, persistent_workers=True)
    for pictures, labels in loader:
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
