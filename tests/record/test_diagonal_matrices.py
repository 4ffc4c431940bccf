"""Diagonal matrices that a step factors, as the step in which ops are listened to shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import DiagonalMatrix

MEAN, VALUES = torch.zeros(8, 5), torch.randn(8, 5)
VARIANCE = torch.rand(8, 5) + 0.5
VARIANCE.requires_grad_()
FULL = torch.eye(5) + 0.1


def found(step: Callable[[], Any]) -> tuple[DiagonalMatrix, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return log.inputs.diagonal_matrices.rows()


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        (lambda: MultivariateNormal(MEAN, torch.diag_embed(VARIANCE), validate_args=False).rsample(), 1),
        (lambda: MultivariateNormal(MEAN, scale_tril=torch.diag_embed(VARIANCE)).log_prob(VALUES), 1),
        (lambda: torch.linalg.solve(torch.diag_embed(VARIANCE), VALUES[..., None]), 1),
        (lambda: torch.cholesky_inverse(torch.linalg.cholesky(torch.diag_embed(VARIANCE))), 2),
    ],
    ids=["a covariance", "a scale", "a system", "an inverse"],
)
def test_matrices_that_are_all_diagonal_are_counted_at_their_line(step: Callable[[], Any], calls: int) -> None:
    [row] = found(step)

    assert (row.size, row.calls, row.line) == (5, calls, step.__code__.co_firstlineno)


@pytest.mark.parametrize(
    "step",
    [
        lambda: MultivariateNormal(MEAN, FULL).rsample(),
        lambda: [torch.linalg.cholesky(one) for one in (FULL, torch.eye(5))],
        lambda: kl_divergence(Independent(Normal(MEAN, VARIANCE), 1), Independent(Normal(MEAN, 1.0), 1)),
        lambda: torch.linalg.cholesky(torch.diag_embed(VARIANCE[:, :1])),
    ],
    ids=["a full one", "one of two", "of elements", "of one element"],
)
def test_others_are_not(step: Callable[[], Any]) -> None:
    assert found(step) == ()
