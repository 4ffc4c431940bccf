"""The programs that bench_try.py compares with themselves: ``python benchmarks/try_program.py KIND``."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

#: More steps than any comparison asks for.
STEPS = 100_000


class Rows(Dataset[torch.Tensor]):
    """Samples that take a millisecond of Python each."""

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(sum(range(20_000)) % 7 + index % 5)] * 64)


def trained(model: nn.Module, make_batch: Callable[[], torch.Tensor], **optimizer: float) -> None:
    """Train on batches that are made in the step."""
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, **optimizer)
    for _ in range(STEPS):
        update.zero_grad()
        model(make_batch()).square().mean().backward()
        update.step()


def tiny() -> None:
    """5 ms: many small ops."""
    trained(nn.Sequential(*(nn.Linear(64, 64) for _ in range(30))), lambda: torch.ones(16, 64))


def convolutions() -> None:
    """40 ms: three convolutions."""
    layers = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.Conv2d(24, 8, 3))
    trained(layers, lambda: torch.ones(8, 3, 48, 48))


def loader() -> None:
    """10 ms: a loader with one worker that the step waits for."""
    model = nn.Linear(64, 8)
    update = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in DataLoader(Rows(), batch_size=8, num_workers=1):
        update.zero_grad()
        model(batch).square().mean().backward()
        update.step()


def python() -> None:
    """20 ms: a loop in Python, with dictionaries and strings."""

    def make_batch() -> torch.Tensor:
        counts: dict[str, int] = {}
        for number in range(40_000):
            word = f"w{number % 977}"
            counts[word] = counts.get(word, 0) + 1
        return torch.full((8, 64), float(len(counts) % 3))

    trained(nn.Linear(64, 8), make_batch)


def optimizer() -> None:
    """60 ms: an update of 8 million weights, and a small forward."""
    trained(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))), lambda: torch.ones(2, 1024))


def sleeps() -> None:
    """40 ms, or 30 with ``--short``: a known saving of a quarter."""
    pause_s = 0.030 if "--short" in sys.argv else 0.040
    model = nn.Linear(8, 8)
    update = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in itertools.repeat(None, STEPS):
        time.sleep(pause_s)
        update.zero_grad()
        model(torch.ones(2, 8)).mean().backward()
        update.step()


PROGRAMS = {each.__name__: each for each in (tiny, convolutions, loader, python, optimizer, sleeps)}

if __name__ == "__main__":
    torch.manual_seed(0)
    PROGRAMS[sys.argv[1]]()
