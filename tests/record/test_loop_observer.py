"""The loaders, batches and optimizers of a loop are observed, and nothing is timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from perfkit.record.hooks.loop_observer import LoopObserver


class Seen:
    def __init__(self) -> None:
        self.optimizers: list[Any] = []
        self.samples: list[int | None] = []
        self.batches: list[Any] = []
        self.observer = LoopObserver(
            on_optimizer=self.optimizers.append, on_samples=self.samples.append, on_batch=self.batches.append
        )


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    seen.observer.attach()
    yield seen
    seen.observer.detach()


def train(loader: Any, optimizer: Any, weight: torch.Tensor) -> None:
    for batch in loader:
        optimizer.zero_grad()
        (weight * batch).sum().backward()
        optimizer.step()


def test_loaders_batch_sizes_and_optimizers_are_seen_once_over_epochs_with_validation(seen: Seen) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    training, validation = DataLoader(torch.ones(8, 3), batch_size=4), DataLoader(torch.ones(6, 3), batch_size=2)
    for _ in range(2):
        train(training, optimizer, weight)
        with torch.no_grad():
            list(validation)

    assert seen.optimizers == [optimizer]
    assert seen.samples == [4]
    assert [len(batch) for batch in seen.batches] == [4, 4, 4, 4]
    roles = [(loader.role, loader.batch_size) for loader in seen.observer.loaders.values()]
    assert roles == [("train", 4), ("validation", 2)]


def test_in_a_program_that_only_evaluates_its_batches_count(seen: Seen) -> None:
    with torch.inference_mode():
        list(DataLoader(torch.ones(6, 3), batch_size=2))

    assert len(seen.batches) == 3
    assert seen.samples == [2]


def test_nothing_of_the_loop_is_timed_and_nothing_stays() -> None:
    backward, scaled, fetch = torch.autograd.backward, torch.amp.GradScaler.step, _BaseDataLoaderIter.__next__
    seen = Seen()
    seen.observer.attach()
    during = torch.autograd.backward, torch.amp.GradScaler.step
    replaced = _BaseDataLoaderIter.__next__ is not fetch
    seen.observer.detach()
    weight = torch.ones(3, requires_grad=True)
    train(DataLoader(torch.ones(8, 3)), torch.optim.SGD([weight], lr=0.1), weight)

    assert during == (backward, scaled)
    assert replaced
    assert _BaseDataLoaderIter.__next__ is fetch
    assert not seen.optimizers
    assert not seen.batches
