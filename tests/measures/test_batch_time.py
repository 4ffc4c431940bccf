"""The time of a step follows the size of its batch."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.steps.batch_time import measure_batch_time
from perfkit.run.records import Padding, Phases, Step

MS = 1_000_000


def row(step: int, forward: float = 10, backward: float = 20, **more: Any) -> Step:
    phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
    wall_ns = round((forward + backward) * MS)
    return Step(**{"step": step, "start_ns": step, "wall_ns": wall_ns, "phases_ns": phases, **more})


def test_the_time_of_an_element_is_the_median_slope() -> None:
    sizes = [1000 + 100 * (step % 9) for step in range(42)]
    rows = [row(step, 5 + size / 100, 0, batch_elements=size) for step, size in enumerate(sizes)]
    rows[20] = row(20, 500, 0, batch_elements=1000)  # another program ran

    found = measure_batch_time(rows, Padding(batches=4, elements=1000, padded=250))

    assert found is not None
    assert found.ns_per_element == pytest.approx(10_000)
    assert found.follows > 0.85
    assert found.padded_share == 0.25
    assert measure_batch_time([row(step, batch_elements=64) for step in range(42)], None) is None


def test_without_a_loader_the_size_is_that_of_the_models_inputs() -> None:
    sizes = [1000 + 100 * (step % 9) for step in range(42)]
    rows = [row(step, 5 + size / 100, 0, model_calls=1, input_elements=size) for step, size in enumerate(sizes)]

    found = measure_batch_time(rows, None)

    assert found is not None
    assert found.ns_per_element == pytest.approx(10_000)


def test_a_loader_that_fetches_one_batch_ahead_returned_a_steps_batch_in_the_step_before() -> None:
    sizes = [1000 + 100 * (step * step % 9) for step in range(43)]
    rows = [row(step, 5 + sizes[step] / 100, 0, batch_elements=sizes[step + 1]) for step in range(42)]

    found = measure_batch_time(rows, None)

    assert found is not None
    assert found.ns_per_element == pytest.approx(10_000)
    assert found.follows > 0.85
