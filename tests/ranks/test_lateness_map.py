"""How late each rank is in each step, in as many cells as a page can draw."""

from __future__ import annotations

import numpy as np

from perfkit.ranks.lateness_map import MAX_COLUMNS, MAX_ROWS, LatenessMap, lateness_map
from tests.ranks.build import MS


def made(own: np.ndarray) -> LatenessMap:
    ranks, steps = own.shape
    return lateness_map((own * MS).astype(np.float32), np.arange(ranks), np.arange(steps))


def test_a_cell_of_a_small_job_is_one_rank_in_one_step_beyond_the_middle_rank() -> None:
    found = made(np.array([[100, 100, 100], [100, 130, 90], [100, 100, np.nan]]))
    assert found.late_ns.tolist()[:2] == [[0, 0, 10 * MS], [0, 30 * MS, 0]]
    assert found.late_ns[2, 1] == 0
    assert np.isnan(found.late_ns[2, 2])


def test_a_cell_of_several_has_the_mean_over_its_steps_of_its_latest_rank() -> None:
    ranks, steps = 2 * MAX_ROWS, 2 * MAX_COLUMNS
    own = np.full((ranks, steps), 100.0)
    own[7] += 20  # in all steps
    own[8, 10] += 20  # in one of the two steps of its cell
    found = made(own)
    assert found.late_ns.shape == found.latest.shape == (MAX_ROWS, MAX_COLUMNS)
    assert (found.ranks_per_row, found.steps_per_column) == (2, 2)
    assert set(found.late_ns[3].tolist()) == {20 * MS}
    assert set(found.latest[3].tolist()) == {7}
    assert (found.late_ns[4, 5], found.latest[4, 5]) == (10 * MS, 8)
    assert found.late_ns.sum() == (20 * MAX_COLUMNS + 10) * MS


def test_the_cells_are_bounded_whatever_the_job_and_no_late_rank_disappears() -> None:
    own = np.full((10_000, 1_000), 100.0, np.float32)
    own[9_999] += 20
    found = made(own)
    assert found.late_ns.shape[0] <= MAX_ROWS
    assert found.late_ns.shape[1] <= MAX_COLUMNS
    assert (found.late_ns[-1] == 20 * MS).all()
    assert (found.latest[-1] == 9_999).all()
    assert not found.late_ns[:-1].any()


def test_the_last_row_and_column_may_have_fewer() -> None:
    found = made(np.full((MAX_ROWS + 1, MAX_COLUMNS + 1), 100.0))
    assert found.late_ns.shape == (MAX_ROWS // 2 + 1, MAX_COLUMNS // 2 + 1)
    assert np.isfinite(found.late_ns).all()
