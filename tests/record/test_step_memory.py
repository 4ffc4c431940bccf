"""Memory from step to step, with statistics that the test makes up."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from perfkit.record.watchers.step_memory import EVERY, OVER, MemoryWatch, watch_memory


class Allocator:
    """The parts of ``torch.cuda.memory_stats_as_nested_dict`` that are read."""

    def __init__(self) -> None:
        self.current = self.peak = self.retries = self.allocs = 0
        self.reads = 0

    def __call__(self) -> dict[str, Any]:
        self.reads += 1
        return {
            "allocated_bytes": {"all": {"current": self.current, "peak": self.peak}},
            "num_alloc_retries": self.retries,
            "num_device_alloc": self.allocs,
        }


def watch(allocator: Allocator) -> MemoryWatch:
    return MemoryWatch(allocator, lambda: 7)


def test_memory_is_read_at_every_tenth_step_and_the_process_at_every_fiftieth() -> None:
    allocator = Allocator()
    memory = watch(allocator)
    readings = [memory.at_end_of(step) for step in range(100)]

    assert [step for step in range(100) if readings[step].get("memory_bytes") is not None] == [
        *range(EVERY - 1, 100, EVERY)
    ]
    assert [step for step in range(100) if readings[step].get("rss_bytes") is not None] == [OVER - 1, 2 * OVER - 1]
    assert allocator.reads == 10


def test_the_peak_is_recorded_where_it_rose_and_starts_anew_after_a_reset_by_the_program() -> None:
    allocator = Allocator()
    memory = watch(allocator)
    peaks = []
    for number, peak in enumerate((500, 500, 800, 300, 300, 400)):
        allocator.current, allocator.peak = 100, peak
        reading = memory.at_end_of(EVERY * number + EVERY - 1)
        peaks.append(reading.get("memory_peak_bytes"))
        assert reading.get("memory_bytes") == 100

    assert peaks == [500, None, 800, None, None, 400]


def test_retries_and_allocations_are_differences_over_fifty_steps() -> None:
    allocator = Allocator()
    memory = watch(allocator)
    found = {}
    for step in range(3 * OVER):
        allocator.allocs += 2 if step < OVER else 0
        allocator.retries += 1 if step >= 2 * OVER else 0
        reading = memory.at_end_of(step)
        if reading.get("alloc_retries") is not None:
            found[step] = (reading.get("alloc_retries"), reading.get("device_allocs"))

    # The first fifty steps are the base: a run that begins in a program's middle has counters already.
    assert found == {2 * OVER - 1: (0, 0), 3 * OVER - 1: (50, 0)}


def test_counters_that_the_program_reset_give_no_difference() -> None:
    allocator = Allocator()
    allocator.allocs = 900
    memory = watch(allocator)
    memory.at_end_of(OVER - 1)
    allocator.allocs = 3

    assert memory.at_end_of(2 * OVER - 1).get("device_allocs") is None
    allocator.allocs = 4
    assert memory.at_end_of(3 * OVER - 1).get("device_allocs") == 1


def test_before_the_program_has_used_the_device_its_memory_is_unknown() -> None:
    assert MemoryWatch(dict, lambda: 7).at_end_of(OVER - 1) == {"rss_bytes": 7}


def test_on_a_cpu_the_size_of_the_process_is_known_and_no_device_memory() -> None:
    reading = watch_memory().at_end_of(OVER - 1)

    assert "memory_bytes" not in reading
    assert reading["rss_bytes"] is not None
    # Read a moment later: the system may take pages of files away at any time.
    assert reading["rss_bytes"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
