"""How a step's time follows the size of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfkit.measures.results.steps import BatchTime
from perfkit.measures.steps._median_slope import median_slope
from perfkit.measures.steps._timed_rows import timed_rows
from perfkit.run.records import Padding, Step

#: Minimum of steps for a slope.
_MIN_STEPS = 12
#: Maximum of steps that are compared pair by pair.
_MAX_STEPS = 400


def measure_batch_time(rows: Sequence[Step], padding: Padding | None) -> BatchTime | None:
    """Time per element of a batch, robustly; None where sizes are not known or do not vary.

    A row has the size of the batch that was fetched in its step, or of its models' inputs where none was. A loader that
    fetches one ahead (accelerate's, and so that of a Trainer of transformers) returned the one that the step computes
    in the step before: what the times follow better counts.
    """
    timed = [row for row in timed_rows(rows)[0] if _elements(row)]
    if len(timed) < _MIN_STEPS:
        return None
    chosen = timed[:: max(1, len(timed) // _MAX_STEPS)]
    sizes = {row.step: _elements(row) for row in rows if row.steps == 1}
    fetched = [(_elements(row), row) for row in chosen]
    before = [(size, row) for row in chosen if row.steps == 1 and (size := sizes.get(row.step - 1))]
    fits = [fit for of in (fetched, before) if (fit := _fit(of)) is not None]
    if not fits:
        return None
    fit = max(fits, key=lambda one: one.follows)
    return BatchTime(
        steps=len(timed),
        elements_per_step=fit.mean,
        spread=fit.spread,
        ns_per_element=fit.slope,
        follows=fit.follows,
        padded_share=padding.padded / padding.elements if padding is not None and padding.elements else None,
        batches_inspected=padding.batches if padding is not None else 0,
    )


def _elements(row: Step) -> int:
    """Those of the batch; without a DataLoader those of what the models are called with."""
    return row.batch_elements or row.input_elements or 0


class _Fit(NamedTuple):
    """How times follow sizes: `BatchTime` has the same under longer names."""

    mean: float
    spread: float
    slope: float
    follows: float


def _fit(steps: Sequence[tuple[int, Step]]) -> _Fit | None:
    """The fit for steps and the elements that each computes; None where those do not vary, or there are few steps."""
    size = np.array([elements / row.steps for elements, row in steps])
    # Waiting for data is not computing.
    wall = np.array([(row.wall_ns - (row.phases_ns.data or 0)) / row.steps for _, row in steps])
    if len(steps) < _MIN_STEPS or size.std() == 0:
        return None
    ranks = np.corrcoef(size.argsort().argsort(), wall.argsort().argsort())[0, 1]
    return _Fit(float(size.mean()), float(size.std() / size.mean()), median_slope(size, wall), float(ranks))
