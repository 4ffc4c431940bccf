"""How late each rank is in each step, in a number of cells that a page can draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfkit.ranks._rank_statistics import Matrix, middle_of
from perfkit.trace.intervals import Ints

#: More rows and columns than a screen shows apart: of 3 pixels each they fill it.
MAX_ROWS, MAX_COLUMNS = 240, 320


@dataclass(frozen=True, eq=False, kw_only=True)
class LatenessMap:
    """Own times beyond that of the middle rank of the step, at least 0, in cells of several ranks and steps.

    A cell has the mean over its steps, of the rank of which that is the longest: a rank that is late in one step of the
    cell is less visible than one that is in all, and none disappears among the ranks beside it.

    Attributes:
        ranks, steps: Those that were compared, in order; a row has ``ranks_per_row`` ranks, a column
            ``steps_per_column`` steps, the last one fewer.
        late_ns: float32[rows, columns], NaN where no rank of the cell has a step.
        latest: int64[rows, columns], the rank that is the latest in each cell.
    """

    ranks: Ints
    steps: Ints
    ranks_per_row: int
    steps_per_column: int
    late_ns: Matrix
    latest: Ints


def lateness_map(own: Matrix, ranks: Ints, steps: Ints) -> LatenessMap:
    """Make the map of own times [ranks, steps] in ns, NaN where a rank does not have a step."""
    per_row, per_column = -(-ranks.size // MAX_ROWS), -(-steps.size // MAX_COLUMNS)
    middle = middle_of(own)
    columns = np.arange(0, steps.size, per_column)
    cells = [_late(own[at : at + per_row], middle, columns) for at in range(0, ranks.size, per_row)]
    latest = [ranks[per_row * row + np.nan_to_num(each, nan=-1).argmax(axis=0)] for row, each in enumerate(cells)]
    return LatenessMap(
        ranks=ranks,
        steps=steps,
        ranks_per_row=per_row,
        steps_per_column=per_column,
        late_ns=np.array([np.fmax.reduce(each, axis=0) for each in cells], np.float32),
        latest=np.array(latest, np.int64),
    )


def _late(own: Matrix, middle: Matrix, columns: Ints) -> Matrix:
    """How late these ranks are in the mean of the steps from each of ``columns`` on."""
    late = np.maximum(own - middle, 0)
    known = np.isfinite(late)
    number = np.add.reduceat(known, columns, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.where(known, late, 0), columns, axis=1)
    found: Matrix = np.where(number > 0, total / np.maximum(number, 1), np.nan).astype(np.float32)
    return found
