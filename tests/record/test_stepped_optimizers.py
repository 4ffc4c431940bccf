"""Optimizers of a run, and what they hold: models of folds and rounds that are over are not kept in memory."""

from __future__ import annotations

import time
import weakref
from pathlib import Path

import torch
from torch import nn

import perfkit
from perfkit.record.stepped_optimizers import SteppedOptimizers
from perfkit.run.reading import read_run


def test_an_optimizer_that_nothing_else_holds_is_dropped_once_another_one_steps() -> None:
    held, last = (torch.optim.SGD([torch.ones(1)], lr=0.1) for _ in range(2))
    dropped = torch.optim.SGD([torch.ones(1)], lr=0.1)
    reference = weakref.ref(dropped)
    optimizers = SteppedOptimizers([held, dropped, last])
    del dropped, last

    optimizers.let_go()

    assert reference() is None
    assert len(optimizers) == 2
    assert optimizers[0] is held


def test_the_model_of_a_fold_is_freed_while_the_next_fold_trains(tmp_path: Path) -> None:
    models: list[weakref.ref[nn.Module]] = []

    def train() -> None:
        model = nn.Linear(8, 8)
        models.append(weakref.ref(model))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)

    alive = []
    with perfkit.profile(tmp_path / "run", quiet=True, report=False):
        for _ in range(4):
            train()
            alive.append([model() is not None for model in models])

    # What trains is held until another one does; the model of a fold may still train when that fold returns.
    assert alive[-1][:2] == [False, False]
    rank = read_run(tmp_path / "run").ranks[0].rank
    assert rank is not None
    assert {one.kind for one in rank.optimizers} == {"Adam"}
