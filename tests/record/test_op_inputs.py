"""Inputs that make ops slow or useless, as the step in which ops are listened to shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.record.samplers.op_inputs import OpInputs
from perfkit.run.records import Phase

LAYER = nn.Linear(64, 8)
TARGET = torch.randn(40, 1)
ROWS = torch.randn(40, 8)


def inputs(step: Callable[[], Any], phase: Phase = "forward") -> OpInputs:
    log = ConstantOpLog(lambda: phase)
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return log.inputs


def test_subnormal_numbers_that_go_into_a_product_are_counted_in_its_line() -> None:
    def step() -> None:
        basis = torch.ones(100, 64)
        basis[:, :16] = 1e-40
        LAYER(basis)

    [row] = inputs(step).subnormal_inputs()

    assert row.op == "aten::addmm"
    # The layer's weights and bias are looked at as well.
    assert (row.subnormal, row.looked_at) == (1_600, 6_400 + 8 * 64 + 8)
    assert row.line == step.__code__.co_firstlineno + 3


def test_of_many_elements_some_are_looked_at_and_views_of_any_layout_are() -> None:
    def step() -> None:
        small = torch.full((64, 5_000), 1e-40).t()
        F.linear(small, torch.ones(2, 64))

    [row] = inputs(step).subnormal_inputs()

    assert 8_000 < row.subnormal < 10_000
    assert row.subnormal == row.looked_at - 128


def test_normal_numbers_zeros_and_other_types_are_not_subnormal() -> None:
    def step() -> None:
        LAYER(torch.zeros(10, 64) + torch.rand(10, 64).round())
        torch.mm(torch.ones(4, 4, dtype=torch.int64), torch.ones(4, 4, dtype=torch.int64))

    assert not inputs(step).subnormal_inputs()


def test_a_column_against_a_row_is_found_at_the_line_where_they_meet() -> None:
    def step() -> None:
        predicted = LAYER(torch.randn(40, 64))[:, 0]
        error = TARGET - predicted
        error.abs().mean().backward()

    [row] = inputs(step).wide_broadcasts()

    assert (row.op, row.one, row.other, row.wide) == ("aten::sub", (40, 1), (40,), (40, 40))
    assert (row.calls, row.line) == (1, step.__code__.co_firstlineno + 2)


def test_the_result_of_a_layer_that_is_weighted_in_pairs_is_found() -> None:
    """The layer's result is that of a product, and one of its two dimensions is left."""

    def step() -> None:
        error = TARGET - LAYER(torch.randn(40, 64))[:, 0]
        (error * torch.randn(40, 40) + 2 * error).mean()

    assert [row.calls for row in inputs(step).wide_broadcasts()] == [1]


def test_a_product_in_the_memory_of_what_is_gone_does_not_hide_it() -> None:
    one, other = torch.randn(40, 8), torch.randn(40, 8)

    def step() -> None:
        error = TARGET - LAYER(torch.randn(40, 64))[:, 0]
        error.square().mean().item()
        del error
        one @ other.T + other @ one.T

    assert [row.calls for row in inputs(step).wide_broadcasts()] == [1]


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_of_torch_that_broadcasts_is_found_too() -> None:
    def step() -> None:
        F.mse_loss(LAYER(torch.randn(40, 64))[:, 0], TARGET)

    [row] = inputs(step).wide_broadcasts()

    assert (row.op, row.one, row.other, row.wide) == ("aten::mse_loss", (1, 40), (40, 1), (40, 40))


@pytest.mark.parametrize(
    "pairs",
    [
        lambda x: x[:, None] - x,  # one tensor with itself
        lambda x: x[:, None] - torch.randn(40)[None, :],  # both got a dimension
        lambda x: x - TARGET[:, 0],
        lambda x: x[:3, None] - torch.randn(3),  # few
        lambda x: x[:, None].square() + TARGET[:, 0].square() - 2 * (x[:, None] @ TARGET.T),  # squared distances
        lambda x: (x[:, None] ** 2 + TARGET[:, 0] ** 2).sub_(2 * x[:, None] @ TARGET.T),
        lambda x: torch.addmm(x[:, None] ** 2 + TARGET[:, 0] ** 2, x[:, None], TARGET.T, alpha=-2),
        lambda x: (x[:, None] ** 2 + TARGET[:, 0] ** 2).addmm_(x[:, None], TARGET.T, beta=1, alpha=-2),
        lambda x: x[:, None] ** 2 + TARGET[:, 0] ** 2 - 2 * torch.einsum("bd,nd->bn", ROWS, ROWS),
        lambda x: x[:, None] ** 2 + TARGET[:, 0] ** 2 + torch.tensor(2.0) * -(x[:, None] @ TARGET.T),
        lambda x: x[:, None] * torch.randn(5),  # of different sizes
        lambda x: torch.randn(40, 8) * x[:, None],
    ],
    ids=[
        "all pairs of one",
        "all pairs of two",
        "equal shapes",
        "few",
        "squared distances",
        "written in place",
        "addmm",
        "addmm_",
        "einsum",
        "negated",
        "outer",
        "a weight for each row",
    ],
)
def test_what_is_meant_is_not_reported(pairs: Callable[[torch.Tensor], Any]) -> None:
    def step() -> None:
        pairs(torch.randn(40))

    assert not inputs(step).wide_broadcasts()


def test_validation_is_not_looked_at() -> None:
    def step() -> None:
        LAYER(torch.full((40, 64), 1e-40))[:, 0] - TARGET

    found = inputs(step, "validation")

    assert not found.subnormal_inputs()
    assert not found.wide_broadcasts()


def test_an_op_whose_inputs_cannot_be_looked_at_is_counted_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a tensor without memory")

    def table() -> torch.Tensor:
        return torch.arange(40).float().exp()

    def step() -> None:
        (table() + torch.rand(40)).sum()

    log = ConstantOpLog(lambda: "forward")
    monkeypatch.setattr(log.inputs, "add", fail)
    for _ in range(2):
        log.start()
        step()
        log.stop()

    [row] = log.rows()
    assert (row.line, row.called.function) == (step.__code__.co_firstlineno + 1, table.__qualname__)


def test_a_state_that_decays_step_by_step_is_looked_at_in_some_of_its_products() -> None:
    def step() -> None:
        state = torch.full((100,), 1e-39)
        for _ in range(64):
            state = state * 0.99

    rows = [row for row in inputs(step).subnormal_inputs() if row.op == "aten::mul"]

    [row] = rows
    assert row.line == step.__code__.co_firstlineno + 3
    # The first eight and one in sixteen of the others; the factor is no tensor.
    assert row.looked_at == 100 * (8 + 4)
    assert row.subnormal == row.looked_at


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (torch.tensor([1.0, 0, 0, 0]).repeat(10).unsqueeze(1), (40, 10, 1)),
        (torch.ones(40, 1), None),  # none is zero
        (torch.zeros(40, 64), None),  # one for each element
        (torch.zeros(4, 1), None),  # too few rows
    ],
)
def test_rows_that_are_multiplied_by_zero_are_counted_in_their_line(factors: Tensor, expected: Any) -> None:
    rows = torch.randn(len(factors), 64)

    def step() -> None:
        factors * rows

    found = inputs(step).gated_rows()

    assert [(one.rows, one.used, one.calls) for one in found] == ([expected] if expected else [])


def test_a_mask_that_is_the_same_in_each_call_of_a_line_is_no_gate() -> None:
    rows, gates = torch.randn(40, 64), torch.eye(4).repeat(10, 1)

    def step(columns: list[int]) -> None:
        for column in columns:
            gates[:, column : column + 1] * rows

    assert inputs(lambda: step([0, 0])).gated_rows() == ()
    [found] = inputs(lambda: step([0, 1])).gated_rows()
    assert (found.rows, found.used, found.calls) == (80, 20, 2)
