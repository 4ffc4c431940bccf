"""Rows that a linear layer gets several times, as the step in which ops are listened to shows them."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from perfkit.record.samplers import repeated_rows
from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import RepeatedRows

NODES, EDGES, WIDTH, OUT = 100, 1600, 64, 32
X = torch.randn(NODES, WIDTH)
SOURCE = torch.randint(NODES, (EDGES,), generator=torch.Generator().manual_seed(0))
FEW_SOURCES = SOURCE % 50
GRID = torch.randn(NODES, WIDTH)
WIDE, OTHER = nn.Linear(WIDTH, OUT), nn.Linear(WIDTH, OUT)
TWO = nn.Sequential(nn.Linear(WIDTH, OUT), nn.Tanh(), nn.Linear(OUT, WIDTH))
WEIGHT = torch.randn(WIDTH, OUT, requires_grad=True)
TABLE = nn.Embedding(50, WIDTH)
WORDS = SOURCE % 50
ATTENTION = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
SEEN = nn.Conv1d(4, 4, 3)
SAMPLES = torch.randn(16, WIDTH)
SQUARE = nn.Linear(WIDTH, WIDTH)
#: Some zeros have a sign in every second row.
SIGNED, SIGNS = torch.cat([X.new_zeros(NODES, 1), X[:, 1:]], 1), torch.ones(EDGES, WIDTH)
SIGNS[::2, 0] = -1
#: Of 380 rows 80 are zero: half of what an index picks are copies of these, and most others are different.
PADDED = torch.cat([torch.randn(300, WIDTH), torch.zeros(80, WIDTH)])
PICKED = torch.cat([torch.arange(300), torch.arange(140), 300 + torch.arange(360) % 80])


def found(step: Callable[[], Any], *, inference: bool = False, with_others: bool = False) -> tuple[RepeatedRows, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        with torch.inference_mode(inference):
            if with_others:
                OTHER(SAMPLES)
            step()
        log.stop()
    return log.inputs.repeated_rows.rows()


def imported(name: str) -> Callable[..., Tensor]:
    """A function of an installed library that calls a layer."""
    names: dict[str, Any] = {}
    exec(compile("def call(layer, rows): return layer(rows)", f"{sysconfig.get_path('purelib')}/{name}", "exec"), names)
    return names["call"]  # type: ignore[no-any-return]


def beside_others(rows: Tensor) -> Tensor:
    return OTHER(SAMPLES).sum() + WIDE(rows)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        lambda: WIDE(X[SOURCE]),
        lambda: WIDE(X.index_select(0, SOURCE)),
        lambda: WIDE(X.gather(0, SOURCE[:, None].expand(EDGES, WIDTH))),
        lambda: imported("torch_geometric/nn/dense/linear.py")(WIDE, X[SOURCE]),
        lambda: X[SOURCE] @ WEIGHT,
        lambda: WIDE(X[SOURCE.view(40, 40)] * 2),
        lambda: F.linear(X.double()[SOURCE], WIDE.weight.double()),
        lambda: F.linear(X.bfloat16()[SOURCE], WIDE.weight.bfloat16()),
    ],
    ids=[
        "index",
        "index_select",
        "gather",
        "layer of torch_geometric",
        "product",
        "of neighbours, and scaled",
        "float64",
        "bfloat16",
    ],
)
def test_rows_that_are_gathered_from_fewer_are_counted_at_the_line_of_the_layer(
    step: Callable[[], Any], inference: bool
) -> None:
    [row] = found(step, inference=inference, with_others=True)

    assert (row.rows, row.different, row.needed, row.calls) == (EDGES, NODES, NODES, 1)
    assert (row.columns, row.results, row.line) == (WIDTH, OUT, step.__code__.co_firstlineno)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "rows",
    [
        lambda: torch.stack(16 * [GRID]),
        lambda: GRID.expand(16, NODES, WIDTH),
        lambda: GRID[:, None].expand(NODES, 16, WIDTH),
        lambda: GRID.repeat_interleave(16, dim=0),
        lambda: GRID.repeat(16, 1),
        lambda: GRID.view(10, 1, 10, WIDTH).expand(10, 16, 10, WIDTH),
    ],
    ids=["a grid in each sample", "expanded", "over time", "repeat_interleave", "repeat", "in the middle"],
)
def test_rows_that_are_equal_in_blocks_are_counted_in_a_step_with_others(
    rows: Callable[[], Tensor], inference: bool
) -> None:
    [row] = found(lambda: beside_others(rows()), inference=inference)

    assert (row.rows, row.different, row.needed) == (EDGES, NODES, NODES)
    assert row.line == beside_others.__code__.co_firstlineno + 1


def test_the_layers_after_the_first_are_counted_too() -> None:
    first, second = found(lambda: TWO(X[SOURCE]), with_others=True)

    assert (first.columns, first.results) == (second.results, second.columns) == (WIDTH, OUT)
    assert first.different == second.different == NODES


def test_rows_that_are_gathered_from_results_of_the_step_need_no_others() -> None:
    [row] = found(lambda: WIDE((X * 2)[SOURCE]))

    assert row.needed == NODES


def test_rows_that_an_op_of_the_step_puts_next_to_their_copies_need_no_others() -> None:
    [row] = found(lambda: WIDE(GRID.repeat_interleave(16, dim=0)))

    assert row.needed == NODES


def test_the_sign_of_a_zero_makes_no_other_row() -> None:
    [row] = found(lambda: WIDE(SIGNED[SOURCE] * SIGNS), with_others=True)

    assert row.different == NODES


@pytest.mark.parametrize(
    "rows",
    [lambda: TABLE(torch.arange(50))[WORDS], lambda: TABLE(torch.arange(50)).repeat(32, 1)],
    ids=["gathered", "repeated"],
)
def test_rows_of_a_table_that_are_copied_later_are_counted(rows: Callable[[], Tensor]) -> None:
    [row] = found(lambda: WIDE(rows()), with_others=True)

    assert (row.different, row.needed) == (50, 50)


@pytest.mark.parametrize("limit", ["_MAX_ROWS", "_MAX_ELEMENTS"])
def test_no_more_rows_are_looked_at_than_a_step_may_take(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> None:
        for _ in range(5):
            WIDE((X * 2)[SOURCE])

    monkeypatch.setattr(repeated_rows, limit, 2 * EDGES * (WIDTH if limit == "_MAX_ELEMENTS" else 1))

    [row] = found(step)
    assert (row.calls, row.different) == (2, 2 * NODES)


def test_nodes_that_no_edge_begins_at_are_needed_where_the_layer_comes_first() -> None:
    [row] = found(lambda: WIDE(X[FEW_SOURCES]), with_others=True)

    assert (row.different, row.needed) == (50, NODES)


def test_a_point_that_is_twice_in_a_grid_does_not_hide_the_blocks() -> None:
    grid = torch.cat([GRID[:1], GRID[:1], GRID[1:-1]])

    [row] = found(lambda: beside_others(torch.stack(16 * [grid])))

    assert (row.rows, row.different, row.needed) == (EDGES, NODES - 1, NODES)


def test_rows_that_agree_in_the_columns_looked_at_first_are_told_apart() -> None:
    alike = X.clone()
    alike[:, ::4] = 1.0

    assert [row.different for row in found(lambda: WIDE(alike[SOURCE]), with_others=True)] == [NODES]
    assert found(lambda: beside_others(torch.randn(EDGES, WIDTH).index_fill_(1, torch.arange(0, WIDTH, 4), 1.0))) == ()


def embedded() -> Tensor:
    return TABLE(WORDS.view(16, NODES)) + TABLE.weight[:1]


def padded(real: int) -> Tensor:
    rows = torch.zeros(EDGES, WIDTH)
    rows[:real] = torch.randn(real, WIDTH)
    return rows


@pytest.mark.parametrize(
    "step",
    [
        lambda: WIDE(torch.randn(EDGES, WIDTH)),
        lambda: WIDE(X)[SOURCE],
        lambda: beside_others(X[:60]),
        lambda: beside_others(X[torch.arange(2 * NODES) % (NODES // 2)][:NODES]),
        lambda: beside_others(padded(200)),
        lambda: beside_others(padded(200).repeat(2, 1)),
        lambda: beside_others(torch.zeros(EDGES, WIDTH)),
        lambda: beside_others(torch.ones(EDGES, WIDTH)),
        lambda: beside_others(SAMPLES[:1].expand(EDGES, WIDTH)),
        lambda: WIDE(F.dropout(X[SOURCE])),
        lambda: WIDE(X[SOURCE] + torch.randn(EDGES, WIDTH)),
        lambda: beside_others(embedded()),
        lambda: beside_others(TABLE.weight[WORDS]),
        lambda: beside_others(torch.randn(2 * EDGES, WIDTH)[SOURCE]),
        lambda: beside_others(F.one_hot(WORDS, WIDTH).float()),
        lambda: F.linear(X[SOURCE, :4], WIDE.weight[:, :4]),
        lambda: WIDE(GRID.repeat(16, 1)),
        lambda: WIDE(F.dropout(TWO(GRID.repeat(16, 1)))),
        lambda: SEEN(X[:80].view(16, 5, 64)[:1, :4].expand(16, 4, 64)).sum() + WIDE(GRID.repeat(16, 1)),
        lambda: beside_others(torch.randint(2, (EDGES, 4)).float().repeat(1, 16)),
        lambda: ATTENTION(*3 * [X.expand(16, NODES, WIDTH)])[0] + OTHER(SAMPLES).sum(),
        lambda: beside_others(X[SOURCE].fill_(float("nan"))),
        lambda: X[SOURCE].sigmoid(),
        lambda: beside_others(TABLE(torch.arange(50).repeat(32))),
        lambda: beside_others(torch.eye(WIDTH).repeat(25, 1)),
        lambda: WIDE((PADDED * 1)[PICKED]),
        lambda: (
            F.linear(F.dropout(SEEN(SAMPLES[:4].expand(16, 4, WIDTH)))[:, 0], WIDE.weight[:, :62]).sum()
            + WIDE(GRID.repeat(16, 1))
        ),
        lambda: SQUARE(F.dropout(SQUARE(SAMPLES[:1].repeat(16, 1)))).sum() + WIDE(GRID.repeat(16, 1)),
        lambda: WIDE(X[SOURCE]),
        lambda: OTHER(SAMPLES).sum() + imported("someone/layers.py")(WIDE, X[SOURCE]),
    ],
    ids=[
        "different rows",
        "the layer before the index",
        "few rows",
        "an index that makes no more rows",
        "padding",
        "a batch of padding",
        "zeros",
        "dummy data",
        "a single row",
        "dropout",
        "noise",
        "words",
        "a table of parameters",
        "few of many rows",
        "one-hot",
        "few columns",
        "a batch of one sample",
        "a batch of one sample before dropout",
        "a batch of one sample in all layers",
        "categories that are equal by chance",
        "attention of torch",
        "NaNs",
        "no layer",
        "each word in turn",
        "each column in turn",
        "padding that is gathered",
        "a batch of one image before dropout",
        "a batch of one sample in a small layer before dropout",
        "a batch drawn from few samples",
        "a layer that a library calls",
    ],
)
def test_what_is_not_repeated_or_not_to_be_moved_is_not_counted(step: Callable[[], Any]) -> None:
    assert found(step) == ()


def test_no_random_number_is_drawn_and_the_input_stays_as_it_is() -> None:
    rows, before = X[SOURCE], torch.get_rng_state()

    found(lambda: WIDE(rows[torch.arange(2 * EDGES) % EDGES]))

    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(rows, X[SOURCE])


def test_a_line_that_gets_different_rows_in_most_calls_is_not_counted() -> None:
    def step(copies: int) -> None:
        for at in range(4):
            WIDE(X[SOURCE] if at < copies else torch.randn(EDGES, WIDTH))

    assert found(lambda: step(2)) == ()
    [row] = found(lambda: step(3))
    assert (row.calls, row.rows, row.needed) == (4, 4 * EDGES, 3 * NODES + EDGES)


MLP = nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUT))
LINE = torch.linspace(0, 1, NODES)[:, None]


def retained(copies: Tensor) -> Tensor:
    hidden = copies * torch.ones((), requires_grad=True)
    hidden.retain_grad()
    return hidden


@pytest.mark.parametrize(
    "step",
    [
        lambda: WIDE(GRID.repeat_interleave(16, dim=0).requires_grad_()),
        lambda: WIDE(retained(GRID.repeat_interleave(16, dim=0))),
        lambda: MLP(LINE.expand(16, NODES, 1).clone().requires_grad_()),
        lambda: MLP(torch.stack(16 * [LINE]).requires_grad_()),
        lambda: MLP(LINE.expand(16, NODES, 1).requires_grad_()),
        lambda: MLP(torch.cat([LINE.repeat(16, 1).requires_grad_()[:, 0:1], torch.ones(EDGES, 1)], 1)[:, :1]),
        lambda: WIDE((X * 2)[SOURCE].requires_grad_() * 2),
        lambda: WIDE((X * 2)[SOURCE] + nn.Parameter(torch.zeros(EDGES, WIDTH))),
    ],
    ids=["leaf", "retained", "coordinates", "stacked", "expanded leaf", "columns", "gathered", "parameter for each"],
)
def test_rows_that_get_a_gradient_each_are_not_counted(step: Callable[[], Tensor]) -> None:
    assert found(step, with_others=True) == ()


@pytest.mark.parametrize(
    "rows",
    [
        lambda: (GRID.clone().requires_grad_() * 2).repeat_interleave(16, dim=0),
        lambda: GRID.clone().requires_grad_().repeat_interleave(16, dim=0),
        lambda: nn.Parameter(GRID)[:, None].expand(NODES, 16, WIDTH),
        lambda: GRID.clone().requires_grad_()[:, None].expand(NODES, 16, WIDTH),
        lambda: (X.clone().requires_grad_() * 2)[SOURCE],
        lambda: GRID.repeat_interleave(16, dim=0) + nn.Parameter(torch.zeros(WIDTH)),
    ],
    ids=["scaled leaf", "leaf", "parameter", "expanded", "gathered", "bias"],
)
def test_rows_whose_gradient_is_a_sum_over_their_copies_are_counted(rows: Callable[[], Tensor]) -> None:
    [row] = found(lambda: WIDE(rows()), with_others=True)

    assert row.needed == NODES


def test_rows_of_coordinates_without_gradients_are_counted_behind_the_first_layer() -> None:
    assert len(found(lambda: MLP(LINE.expand(16, NODES, 1).clone()), with_others=True)) == 2


def test_rows_that_are_cut_into_several_are_no_copies() -> None:
    # Each row has the same 16 columns four times, as data that is equal by chance.
    rows = torch.randn(10, 40, 16).repeat(1, 1, 4).transpose(0, 1)
    narrow = nn.Linear(16, 256)

    # Without autograd the op that is heard is the reshape, which copies as many elements as there are.
    assert found(lambda: narrow(rows.reshape(-1, 16)), inference=True) == ()


def test_types_whose_rows_are_not_told_apart_are_left_out() -> None:
    counts, mm = repeated_rows.RepeatedRowCounts(), torch.ops.aten.mm.default
    site = (found.__code__, 1)

    counts.add(mm, (X[SOURCE].to(torch.float8_e4m3fn), WEIGHT), X.new_zeros(EDGES, OUT), site)
    assert counts.rows() == ()


def test_an_error_of_what_looks_at_samples_leaves_the_rows_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.record.samplers.repeated_samples._kind_of", None)

    [row] = found(lambda: WIDE((X * 2)[SOURCE]))
    assert row.needed == NODES
