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

IS_PAIR = (PAIRS > 0).index_put_((torch.tensor([0, 0, 9]), torch.tensor([5, 9, 11])), torch.tensor(True))
SCORES = torch.randn(2, 500, 500, requires_grad=True)


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


def attend(scores: torch.Tensor, *, dropout: float = 0.0) -> torch.Tensor:
    return F.dropout(scores.softmax(-1), dropout) @ NODES


def below(share: float) -> torch.Tensor:
    """Scores of which all but the highest ones of each row are masked."""
    lowest = SCORES.kthvalue(round(500 * share), -1, keepdim=True).values
    return SCORES.masked_fill(lowest > SCORES, float("-inf"))


@pytest.mark.parametrize(
    "step",
    [
        lambda: attend(torch.where(IS_PAIR, F.leaky_relu(SCORES), -9e15 * torch.ones_like(SCORES))),
        lambda: attend(SCORES.masked_fill(~IS_PAIR, float("-inf")), dropout=0.5),
        lambda: attend((SCORES + (~IS_PAIR) * -1e9).detach()),
    ],
    ids=["where", "masked, with a dropout", "added, in an evaluation"],
)
def test_attention_of_which_a_mask_leaves_few_pairs_is_counted_as_such_without_its_dropout(
    step: Callable[[], Any],
) -> None:
    [row] = found(step)

    assert (row.shape, row.elements, row.nonzero) == ((500, 500), 500_000, 2 * int(torch.count_nonzero(IS_PAIR)))
    assert row.is_attention
    assert not row.is_one_hot


@pytest.mark.parametrize(
    "step",
    [
        lambda: attend(SCORES),
        lambda: attend(SCORES.masked_fill(torch.ones(500, 500).triu(1) > 0, float("-inf"))),
        lambda: attend(SCORES.masked_fill(torch.arange(500) > 4, float("-inf"))),
        lambda: attend(SCORES * 10_000),
        lambda: attend((SCORES * 10_000).detach()),
        lambda: attend(below(0.99)),
        lambda: (SCORES.masked_fill(~IS_PAIR, float("-inf")).softmax(-1) + 1) @ NODES,
        lambda: SCORES.masked_fill(~IS_PAIR, float("-inf")).softmax(-1).sum(-1) @ torch.ones(500, 3),
    ],
    ids=[
        "without a mask",
        "a causal mask",
        "samples without their padding",
        "far apart",
        "far apart, in an evaluation",
        "the highest ones",
        "what is no longer zero",
        "sums of it",
    ],
)
def test_attention_whose_zeros_are_few_or_chosen_by_its_scores_is_not_counted(step: Callable[[], Any]) -> None:
    assert found(step) == ()
