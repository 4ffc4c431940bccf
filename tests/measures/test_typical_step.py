"""The typical step of a run."""

from __future__ import annotations

from typing import Any

from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.run.records import Phases, Step

MS = 1_000_000


def row(step: int, ms: float, phases: Phases | None = None, **more: Any) -> Step:
    wall_ns = round(ms * MS)
    return Step(step=step, start_ns=step * 10**9, wall_ns=wall_ns, phases_ns=phases or Phases(other=wall_ns), **more)


def test_memory_of_a_run_is_its_highest_peak_and_the_sum_of_its_allocator_calls() -> None:
    rows = [row(0, 1, memory_peak_bytes=5), row(1, 1), row(2, 1, memory_peak_bytes=9, alloc_retries=0, device_allocs=2)]
    found = measure_typical_step([*rows, row(3, 1, alloc_retries=1, device_allocs=2)])

    assert found is not None
    assert (found.memory_peak_bytes, found.alloc_retries, found.device_allocs) == (9, 1, 4)


def test_of_a_few_steps_the_first_counts_unless_it_takes_twice_as_long_as_any() -> None:
    def mean_ms(*times: float) -> float:
        found = measure_typical_step([row(step, ms) for step, ms in enumerate(times)])
        assert found is not None
        return found.wall_ns / MS

    assert mean_ms(500, 60, 120, 60) == 80
    assert mean_ms(200, 60, 120, 60) == 110
    assert mean_ms(500) == 500
