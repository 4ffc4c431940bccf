"""How a step's time follows the size of its batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfkit.measures.results.steps import BatchTime
from perfkit.measures.steps._timed_rows import timed_rows
from perfkit.run.records import Padding, Step

#: Minimum of steps for a slope.
_MIN_STEPS = 12
#: Maximum of steps that are compared pair by pair.
_MAX_STEPS = 400


def measure_batch_time(rows: Sequence[Step], padding: Padding | None) -> BatchTime | None:
    """Time per element of a batch, robustly; None where sizes are not known or do not vary."""
    timed = [row for row in timed_rows(rows)[0] if row.batch_elements]
    if len(timed) < _MIN_STEPS:
        return None
    chosen = timed[:: max(1, len(timed) // _MAX_STEPS)]
    size = np.array([(row.batch_elements or 0) / row.steps for row in chosen])
    # Waiting for data is not computing.
    wall = np.array([(row.wall_ns - (row.phases_ns.data or 0)) / row.steps for row in chosen])
    if size.std() == 0:
        return None
    slope = _median_slope(size, wall)
    ranks = np.corrcoef(size.argsort().argsort(), wall.argsort().argsort())[0, 1]
    return BatchTime(
        steps=len(timed),
        elements_per_step=float(size.mean()),
        spread=float(size.std() / size.mean()),
        ns_per_element=slope,
        follows=float(ranks),
        padded_share=padding.padded / padding.elements if padding is not None and padding.elements else None,
        batches_inspected=padding.batches if padding is not None else 0,
    )


def _median_slope(size: np.ndarray, wall: np.ndarray) -> float:
    """The median slope of all pairs (Theil-Sen): steps that another program disturbed do not change it."""
    apart = size[:, None] - size[None, :]
    pairs = np.triu(apart != 0, 1)
    slopes = (wall[:, None] - wall[None, :])[pairs] / apart[pairs]
    return float(np.median(slopes))
