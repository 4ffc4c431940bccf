"""Rates, percentiles and slow steps; every number is computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.steps.throughput import measure_throughput
from perfkit.run.records import Phases, Step

MS = 1_000_000


def row(step: int, ms: float, phases: Phases | None = None, **more: Any) -> Step:
    wall_ns = round(ms * MS)
    return Step(step=step, start_ns=step * 10**9, wall_ns=wall_ns, phases_ns=phases or Phases(other=wall_ns), **more)


def test_rates_are_totals_over_totals_without_validation() -> None:
    rows = [row(step, 10, samples=32, tokens=1000) for step in range(2, 11)]
    rows.append(row(11, 60, Phases(other=10 * MS, validation=50 * MS), samples=32, tokens=1000))
    found = measure_throughput(rows)

    assert found is not None
    assert found.steps_per_s == pytest.approx(100)
    assert found.samples_per_s == pytest.approx(3200)
    assert found.tokens_per_s == pytest.approx(100_000)


def test_a_rate_that_not_every_step_has_is_not_known() -> None:
    found = measure_throughput([row(2, 10, samples=8), row(3, 10)])

    assert found is not None
    assert found.samples_per_s is None
    assert found.tokens_per_s is None


def test_percentiles_of_a_hundred_steps() -> None:
    found = measure_throughput([row(step + 2, step + 1) for step in range(100)])

    assert found is not None
    assert (found.p50_ns, found.p90_ns, found.p99_ns) == (50 * MS, 90 * MS, 99 * MS)


def test_a_percentile_of_too_few_steps_is_not_known() -> None:
    few, some = measure_throughput([row(2, 1)]), measure_throughput([row(step + 2, 1) for step in range(10)])

    assert few is not None
    assert (few.p50_ns, few.p90_ns) == (MS, None)
    assert some is not None
    assert (some.p90_ns, some.p99_ns) == (MS, None)


def test_a_merged_row_counts_as_the_steps_it_represents() -> None:
    found = measure_throughput([row(0, 90, steps=90), row(90, 5), *(row(91 + step, 9) for step in range(9))])

    assert found is not None
    assert (found.steps, found.p50_ns, found.p90_ns, found.p99_ns) == (100, MS, MS, 9 * MS)
    assert found.source == "steps.jsonl, 100 steps in 11 rows"
    assert {slow.step for slow in found.slowest} <= set(range(90, 100))


def test_steps_inside_windows_of_the_dry_run_and_of_the_warm_up_are_left_out() -> None:
    rows = [row(0, 900), row(1, 900), row(2, 500, kind="window"), row(3, 500, kind="dry")]
    found = measure_throughput([*rows, *(row(step, 10) for step in range(4, 20))])

    assert found is not None
    assert found.slowest[0].wall_ns == 10 * MS
    assert found.excluded == {"in a window": 1, "dry run": 1, "warm-up": 2}


def test_a_slow_step_names_the_phase_that_made_it_slow() -> None:
    usual = Phases(data=2 * MS, forward=8 * MS)
    rows = [row(step, 10, usual) for step in range(2, 12)]
    rows[4] = row(6, 50, Phases(data=3 * MS, forward=8 * MS, checkpoint=39 * MS), gc_ns=5)
    found = measure_throughput(rows)

    assert found is not None
    slowest = found.slowest[0]
    assert (slowest.step, slowest.phase, slowest.beyond_ns, slowest.gc_ns) == (6, "checkpoint", 39 * MS, 5)
    assert found.slowest[1].phase is None
    assert len(found.slowest) == 5


def test_without_a_timed_step_there_is_no_throughput() -> None:
    assert measure_throughput([row(0, 10, kind="window")]) is None
