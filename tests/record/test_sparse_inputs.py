"""Matrices of zeros that a step multiplies by, as the step in which ops are listened to shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import SparseInput

IDS = torch.arange(64) * 7 % 500
TABLE = torch.randn(500, 16, requires_grad=True)
NODES = torch.randn(500, 16, requires_grad=True)
EDGES = torch.zeros(500, 500).index_put_((torch.arange(500), torch.arange(500) * 3 % 500), torch.ones(1))
PAIRS = EDGES + torch.eye(500)
IN_PAIRS = int(torch.count_nonzero(PAIRS))


def found(step: Callable[[], Any]) -> tuple[SparseInput, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return log.inputs.sparse_inputs.rows()


@pytest.mark.parametrize(
    ("step", "shape", "nonzero", "is_one_hot"),
    [
        (lambda: F.one_hot(IDS, 500).float() @ TABLE, (64, 500), 64, True),
        (lambda: F.linear(F.one_hot(IDS.view(4, 16), 500).float(), TABLE.T), (64, 500), 64, True),
        (lambda: EDGES @ NODES, (500, 500), 500, True),
        (lambda: EDGES * 2 @ NODES, (500, 500), 500, False),
        (lambda: TABLE.T @ EDGES, (500, 500), 500, False),
        (lambda: PAIRS @ NODES, (500, 500), IN_PAIRS, False),
        (lambda: torch.addmm(TABLE, PAIRS, NODES), (500, 500), IN_PAIRS, False),
        (lambda: PAIRS.expand(3, 500, 500) @ NODES.expand(3, 500, 16), (500, 500), 3 * IN_PAIRS, False),
    ],
    ids=[
        "one-hot",
        "one-hot of words",
        "a permutation",
        "other numbers than one",
        "on the right",
        "a graph",
        "with a bias",
        "of each of a batch",
    ],
)
def test_a_matrix_of_zeros_in_a_product_is_counted_at_its_line(
    step: Callable[[], Any], shape: tuple[int, int], nonzero: int, is_one_hot: bool
) -> None:
    [row] = found(step)

    assert (row.shape, row.nonzero, row.is_one_hot) == (shape, nonzero, is_one_hot)
    assert row.line == step.__code__.co_firstlineno


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.zeros(64, 500) @ TABLE,
        lambda: F.relu(torch.randn(64, 500)) @ TABLE,
        lambda: torch.randn(64, 500) @ nn.Parameter(torch.eye(500)),
        lambda: F.one_hot(IDS % 50, 50).float() @ TABLE[:50],
        lambda: torch.addmm(EDGES, torch.randn(500, 4), torch.randn(4, 500)),
        lambda: torch.sparse.mm(PAIRS.to_sparse(), NODES),
    ],
    ids=[
        "a state that begins",
        "activations",
        "weights that are trained",
        "a small one",
        "a summand",
        "one that is sparse",
    ],
)
def test_what_is_not_sparse_for_good_is_not_counted(step: Callable[[], Any]) -> None:
    assert found(step) == ()
