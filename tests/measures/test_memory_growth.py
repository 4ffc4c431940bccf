"""Levels of memory that rise steadily are growth."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.memory.memory_growth import measure_memory_growth
from perfkit.run.records import Phases, Step

MS = 1_000_000


def row(step: int, forward: float = 10, backward: float = 20, **more: Any) -> Step:
    phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
    wall_ns = round((forward + backward) * MS)
    return Step(**{"step": step, "start_ns": step, "wall_ns": wall_ns, "phases_ns": phases, **more})


def levels(*values: int | None, field: str = "rss_bytes") -> list[Step]:
    return [row(50 * (number + 1) - 1, **{field: value}) for number, value in enumerate(values)]


def test_a_level_that_rises_steadily_grows_by_its_median_rise() -> None:
    # 100 MB in 50 steps, with one jump of a cache.
    growth = measure_memory_growth(levels(*(n * 10**8 + (n > 3) * 10**9 for n in range(10))))

    assert growth is not None
    assert growth.process_bytes_per_step == 2_000_000
    assert growth.device_bytes_per_step is None


@pytest.mark.parametrize("values", [(5, 5, 5, 5), (5, 9, 4, 9, 5), (9, 8, 7, 6)])
def test_a_level_that_does_not_rise_steadily_does_not_grow(values: tuple[int, ...]) -> None:
    growth = measure_memory_growth(levels(*(value * 10**8 for value in values), field="memory_bytes"))

    assert growth is not None
    assert growth.device_bytes_per_step == 0
    assert measure_memory_growth(levels(None, 10**8)) is None
