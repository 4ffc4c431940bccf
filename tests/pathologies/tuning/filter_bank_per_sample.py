"""Recordings become mel spectrograms in the dataset."""

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIXED = "--fixed" in sys.argv
SAMPLES, FRAMES, BINS, BANDS = 70 * 4, 8, 257, 128


def mel_filters() -> np.ndarray:
    """Triangular filters, (BINS, BANDS)."""
    edges = 700 * (10 ** (np.linspace(0, 2840, BANDS + 2) / 2595) - 1)
    filters = np.zeros((BINS, BANDS), dtype=np.float32)
    frequencies = np.linspace(0, 8000, BINS)
    for band in range(BANDS):  # spent: input-bound
        low, middle, high = edges[band : band + 3]  # spent: input-bound
        rising = (frequencies - low) / (middle - low)  # spent: input-bound
        falling = (high - frequencies) / (high - middle)  # spent: input-bound
        filters[:, band] = np.maximum(0, np.minimum(rising, falling))  # spent: input-bound
    return filters


FILTERS = mel_filters()


class Spectrograms(Dataset[tuple[Tensor, int]]):
    """Mel spectrograms and classes."""

    def __init__(self) -> None:
        self.power = np.random.default_rng(0).random((SAMPLES, FRAMES, BINS), dtype=np.float32)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        filters = FILTERS if FIXED else mel_filters()  # spent: input-bound # change: input-bound
        return torch.from_numpy(np.log(self.power[index] @ filters + 1e-6)), index % 10


def main() -> None:
    torch.manual_seed(0)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(FRAMES * BANDS, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Spectrograms(), batch_size=4):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
