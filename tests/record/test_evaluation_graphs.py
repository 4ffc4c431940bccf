"""Graphs that an evaluation builds: local tensors after one of its batches, and calls with gradients enabled."""

from __future__ import annotations

import linecache
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfkit
from perfkit.record.watchers.evaluation_graphs import EvaluationGraphs
from perfkit.run.reading import read_run


def test_a_graph_of_an_evaluation_is_distinguished_from_those_of_the_training() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = weight.sum()
    graphs = EvaluationGraphs()
    assert graphs.new_graph() is not None  # the training's: it came since nothing was known
    assert graphs.new_graph() is None
    scores = weight * 2

    line = graphs.new_graph()

    assert line is not None
    assert "scores = weight" in linecache.getline(line.file, line.line or 0)
    assert loss is not scores


def test_a_check_keeps_no_tensor_alive() -> None:
    local = torch.ones(3, requires_grad=True) * 2
    reference = weakref.ref(local)
    own = locals()

    EvaluationGraphs().new_graph()
    assert own["local"] is local
    del own
    EvaluationGraphs().new_graph()
    del local

    assert reference() is None


def line_of_graphs(folder: Path, *, no_grad: bool = False, gradients: bool = False) -> int | None:
    """The line that a training with an evaluation after every ten steps is said to make graphs at."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train, valid = (DataLoader(TensorDataset(torch.ones(20, 4)), 2) for _ in range(2))
    with perfkit.profile(folder, quiet=True):
        for number, (x,) in enumerate(train):
            model(x).sum().backward()
            optimizer.step()
            if number % 5 == 4:
                model.eval()
                total = 0.0
                for (y,) in valid:
                    with torch.set_grad_enabled(not no_grad):
                        total += model(y.requires_grad_()).sum().item()  # here
                        if gradients:
                            torch.autograd.grad(model(y).sum(), y)
                model.train()
    rank = read_run(folder).ranks[0].rank
    assert rank is not None
    return rank.evaluated_with_grad.line if rank.evaluated_with_grad is not None else None


def test_a_call_with_gradients_enabled_is_found_although_nothing_is_kept_of_it(tmp_path: Path) -> None:
    line = line_of_graphs(tmp_path / "run")

    assert line is not None
    assert "# here" in linecache.getline(__file__, line)


@pytest.mark.parametrize("how", ["no_grad", "gradients"])
def test_an_evaluation_without_gradients_or_that_asks_for_them_makes_no_graph_in_vain(how: str, tmp_path: Path) -> None:
    assert line_of_graphs(tmp_path / "run", **{how: True}) is None
