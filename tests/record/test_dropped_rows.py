"""Rows that a step computes and does not pick, as the step in which ops are listened to shows them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import DroppedRows, Phase

ROWS, PICKED = 200, 30
NET = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
NORM = nn.BatchNorm1d(8)
CATALOGUE = torch.randn(ROWS, 8)
HEAD = nn.Linear(8, 100)
IDS = torch.arange(PICKED) * 2
MASK = torch.zeros(ROWS, dtype=torch.bool).index_fill(0, IDS, True)


def found(step: Callable[[], Any], phase: Phase = "forward") -> tuple[DroppedRows, ...]:
    log = ConstantOpLog(lambda: phase)
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return log.inputs.dropped_rows()


def encoded(rows: torch.Tensor) -> torch.Tensor:
    return F.normalize(NET(rows), dim=1)  # computes them


@pytest.mark.parametrize(
    "pick",
    [
        lambda rows: rows[IDS],
        lambda rows: rows[MASK],
        lambda rows: rows.index_select(0, IDS),
        lambda rows: F.embedding(IDS, rows),
        lambda rows: rows.view(ROWS, 2, 4)[IDS],
        lambda rows: rows.detach()[torch.cat((IDS, IDS))],
    ],
    ids=["by numbers", "by a mask", "index_select", "embedding", "a view", "some twice"],
)
def test_rows_that_an_index_does_not_pick_are_counted_with_the_lines_that_compute_them(
    pick: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    [row] = found(lambda: pick(encoded(CATALOGUE)))

    assert (row.rows, row.picked) == (ROWS, PICKED)
    assert [at.line for at in row.made_at] == [encoded.__code__.co_firstlineno + 1]


def test_positions_of_all_texts_are_rows_of_their_scores() -> None:
    head = nn.Linear(8, 50)

    [row] = found(lambda: head(torch.randn(10, 20, 8)).view(-1, 50)[IDS])

    assert (row.rows, row.picked) == (200, PICKED)


PICTURE = torch.randn(200, 300, 3)
TALL, WIDE = torch.arange(50), torch.arange(50) * 2


@pytest.mark.parametrize(
    ("pick", "rows", "picked"),
    [
        (lambda rays: rays[TALL, WIDE], 60_000, 50),
        (lambda rays: rays[PICTURE[..., 0] > 100], 60_000, 0),
        (lambda rays: rays.square().sum(-1)[TALL, WIDE], 60_000, 50),
        (lambda rays: rays.square().sum(1)[TALL], 200, 50),
        (lambda rays: rays[TALL], 200, 50),
    ],
    ids=["by two numbers", "by a mask", "of their norms", "rows of sums", "rows"],
)
def test_of_the_places_of_a_picture_those_that_an_index_picks_are_counted(
    pick: Callable[[torch.Tensor], torch.Tensor], rows: int, picked: int
) -> None:
    [row] = found(lambda: pick((PICTURE - 1) * 2))

    assert (row.rows, row.picked) == (rows, picked)
    assert row.shape == ((200, 300) if rows > 200 else (200,))


@pytest.mark.parametrize(
    "pick",
    [
        lambda rays: rays.cumsum(1)[TALL, WIDE],
        lambda rays: rays.mean(1, keepdim=True).expand(200, 300, 3)[TALL, WIDE],
        lambda rays: F.layer_norm(rays, (300, 3))[TALL, WIDE],
        lambda rays: rays[:, TALL],
        lambda rays: (rays[TALL, WIDE], rays.mean()),
    ],
    ids=["of what went along a row", "of a mean of rows", "of a norm of rows", "of columns", "and all"],
)
def test_places_that_are_needed_are_none(pick: Callable[[torch.Tensor], Any]) -> None:
    assert found(lambda: pick((PICTURE - 1) * 2)) == ()


def test_several_lines_that_pick_from_the_same_rows_are_one() -> None:
    def step() -> None:
        rows = encoded(CATALOGUE)
        rows[IDS]
        rows[IDS + 1]

    [row] = found(step)

    assert row.picked == 2 * PICKED
    assert row.line == step.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    "step",
    [
        lambda: encoded(CATALOGUE)[torch.randperm(ROWS)],
        lambda: (lambda rows: (rows @ rows.T, rows[IDS]))(encoded(CATALOGUE)),
        lambda: (lambda rows: rows[rows.sum(1).topk(PICKED).indices])(encoded(CATALOGUE)),
        lambda: (lambda rows: rows[rows[:, 0] > 0.9])(encoded(CATALOGUE)),
        lambda: NORM(NET(CATALOGUE))[IDS],
        lambda: F.scaled_dot_product_attention(*3 * [NET(CATALOGUE).view(1, ROWS, 8)])[0][IDS],
        lambda: torch.zeros(ROWS, 8).index_add(0, IDS, NET(CATALOGUE)[:PICKED])[IDS],
        lambda: (lambda rows: (rows.mean(0), rows[IDS]))(encoded(CATALOGUE)),
        lambda: (lambda rows: (rows.square().mean(), rows[IDS]))(encoded(CATALOGUE)),
        lambda: CATALOGUE[IDS],
        lambda: encoded(CATALOGUE)[:, torch.tensor([0, 1])],
        lambda: (lambda rows: (rows.view(2, 100, 8).exp(), rows[IDS]))(encoded(CATALOGUE)),
        lambda: (lambda rows: (rows[torch.randperm(ROWS)], rows.view(ROWS, 2, 4)[IDS, IDS % 2]))(encoded(CATALOGUE)),
        lambda: (lambda rows: ((rows + NET(CATALOGUE))[torch.randperm(ROWS)], rows[IDS]))(encoded(CATALOGUE)),
        lambda: (lambda one: ((one + one.T) / 2)[IDS])(torch.relu(CATALOGUE @ CATALOGUE.T)),
        lambda: (lambda one: (one @ one)[IDS])(torch.softmax(CATALOGUE @ CATALOGUE.T, 1)),
        lambda: (lambda rows: (rows.tolist(), rows[IDS]))(encoded(CATALOGUE)),
        lambda: (lambda rows: (np.asarray(rows.detach()), rows[IDS]))(encoded(CATALOGUE)),
        lambda: (lambda rows: (pickle.dumps(rows.detach()), rows[IDS]))(encoded(CATALOGUE)),
    ],
    ids=[
        "all are picked",
        "scores of all",
        "the largest are picked",
        "picked by their values",
        "batch norm",
        "attention",
        "messages",
        "a mean of all",
        "a number of all",
        "nothing is computed",
        "columns",
        "read under another shape",
        "all in one place and some elsewhere",
        "all of a sum with others",
        "with its transpose",
        "a product with itself",
        "all are read in Python",
        "all are read by numpy",
        "all are saved",
    ],
)
def test_rows_that_are_needed_are_none(step: Callable[[], Any]) -> None:
    assert found(step) == ()


def test_rows_of_a_state_that_the_next_step_reads_are_needed() -> None:
    state = [torch.zeros(ROWS, 8)]

    def step() -> None:
        state[0] = encoded(CATALOGUE + state[0])
        state[0][IDS].sum()

    assert found(step) == ()


def test_rows_that_a_validation_reads_are_needed() -> None:
    phase: list[Phase] = ["forward"]
    log = ConstantOpLog(lambda: phase[0])
    for _ in range(2):
        log.start()
        rows = encoded(CATALOGUE)
        rows[IDS].sum()
        phase[0] = "validation"
        rows.norm()
        phase[0] = "forward"
        log.stop()

    assert log.inputs.dropped_rows() == ()


def test_of_too_many_choices_nothing_is_said() -> None:
    def step() -> None:
        rows = encoded(CATALOGUE)
        for _ in range(400):
            rows[IDS]

    assert found(step) == ()


def test_rows_that_stay_in_a_name_until_the_next_step_are_not() -> None:
    kept = [torch.zeros(ROWS, 8)]

    def step() -> None:
        kept[0] = encoded(CATALOGUE)
        kept[0][IDS].sum()

    [row] = found(step)
    assert row.picked == PICKED


def test_python_reads_tensors_by_torchs_own_methods_after_the_step() -> None:
    read = torch.Tensor.numpy, torch.Tensor.tolist

    assert found(lambda: encoded(CATALOGUE)[IDS].tolist())
    assert (torch.Tensor.numpy, torch.Tensor.tolist) == read


class TestPartsOfScores:
    """A view of the scores of a vocabulary is all that is read of them."""

    SAMPLES, PLACES, WORDS = 4, 20, 100

    @staticmethod
    def scores() -> torch.Tensor:
        hidden = torch.randn(TestPartsOfScores.SAMPLES, TestPartsOfScores.PLACES, 8)
        return HEAD(hidden)  # computes them

    @pytest.mark.parametrize(
        ("read", "picked"),
        [
            (lambda scores: scores[:, -1].exp(), SAMPLES),
            (lambda scores: F.cross_entropy(scores[:, -1], torch.zeros(4, dtype=torch.int64)), SAMPLES),
            (lambda scores: (scores.float() / 2)[:, -1].argmax(-1), SAMPLES),
            (lambda scores: scores[torch.arange(4), torch.tensor([19, 3, 8, 2])].exp(), SAMPLES),
            (lambda scores: scores[torch.arange(80).view(4, 20) % 10 == 0].exp(), 2 * SAMPLES),
            (lambda scores: (scores[:, -1].exp(), scores[:, 0].exp(), scores[:, 0].log()), 2 * SAMPLES),
        ],
        ids=["the last place", "a loss", "after ops of elements", "by numbers", "by a mask", "two places"],
    )
    def test_what_is_read_counts_as_rows(self, read: Callable[[torch.Tensor], Any], picked: int) -> None:
        [row] = found(lambda: read(self.scores()))

        assert (row.rows, row.columns, row.picked) == (self.SAMPLES * self.PLACES, self.WORDS, picked)
        assert [at.line for at in row.made_at] == [self.scores.__code__.co_firstlineno + 3]

    @pytest.mark.parametrize(
        "read",
        [
            lambda scores: F.cross_entropy(scores.flatten(0, 1), torch.zeros(80, dtype=torch.int64)),
            lambda scores: [part.exp() for part in scores.chunk(4, dim=-1)],
            lambda scores: (scores[:, -1].exp(), scores.sum()),
            lambda scores: scores.sum(-1)[:, -1].exp(),
            lambda scores: scores[:, 5:].exp(),
            lambda scores: scores[torch.arange(80).view(4, 20) % 10 > 3].exp(),
            lambda scores: scores[torch.arange(4), torch.tensor([19, 3, 8, 2]), torch.arange(4)].exp(),
            lambda scores: scores.view(80, 5, 20)[torch.arange(80), torch.arange(80) % 5].exp(),
            lambda scores: scores[:, 0].mul_(2) + scores.sum(1),
            lambda scores: (scores[:, -1].fill_(-1e9), scores.logsumexp(-1)),
            lambda scores: (scores[:, -1].exp(), scores.detach().numpy()),
        ],
        ids=[
            "all",
            "all in parts",
            "all of them too",
            "their sums",
            "most of them",
            "most by a mask",
            "elements",
            "parts of a row",
            "a part written",
            "a part filled",
            "all by numpy",
        ],
    )
    def test_scores_that_are_needed_are_not_reported(self, read: Callable[[torch.Tensor], Any]) -> None:
        assert found(lambda: read(self.scores())) == ()

    def test_what_a_layer_computes_for_other_places_is_no_vocabulary(self) -> None:
        layer = nn.TransformerEncoderLayer(16, 2, 64, batch_first=True)

        assert found(lambda: layer(torch.randn(4, 20, 16))[:, 0].exp()) == ()


LEFT, RIGHT = torch.randn(2, 40, 60), torch.randn(2, 40, 60)


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        (lambda: (LEFT[0] @ RIGHT[0].T).diagonal().sum(), 40),
        (lambda: torch.diag(LEFT[0] @ RIGHT[0].T).exp(), 40),
        (lambda: ((LEFT[0] @ RIGHT[0].T) / 2).exp().diag().sum(), 40),
        (lambda: torch.trace(LEFT[0] @ RIGHT[0].T).exp(), 40),
        (lambda: (LEFT @ RIGHT.mT).diagonal(dim1=-2, dim2=-1).sum(), 80),
    ],
    ids=["diagonal", "diag", "after ops of elements", "trace", "of each of a batch"],
)
def test_a_square_product_of_which_the_diagonal_alone_is_read_is_counted(
    read: Callable[[], torch.Tensor], rows: int
) -> None:
    [row] = found(read)

    assert (row.is_diagonal, row.rows, row.columns, row.picked) == (True, rows, 40, rows // 40)


@pytest.mark.parametrize(
    "read",
    [
        lambda product: product.logsumexp(-1) - product.diagonal(),
        lambda product: (product[0].exp(), product.diagonal().sum()),
        lambda product: product[:, 0].exp(),
        lambda product: torch.linalg.cholesky(product.diagonal().add_(99.0).new_ones(1) * product),
        lambda product: (product.fill_diagonal_(-9e15), product.logsumexp(-1)),
        lambda product: torch.log_softmax(product, -1)[torch.arange(40), torch.arange(40)].mean(),
        lambda product: torch.linalg.cholesky(product + 1e4 * torch.eye(40)).diagonal().log(),
    ],
    ids=["negatives of a loss", "a row too", "a narrow column", "added to", "filled", "elements", "a factor"],
)
def test_a_square_product_of_which_more_is_read_is_none(read: Callable[[torch.Tensor], Any]) -> None:
    assert found(lambda: read(LEFT[0] @ LEFT[0].T)) == ()
