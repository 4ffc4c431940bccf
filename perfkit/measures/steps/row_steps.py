"""Where a step goes, from the rows of steps.jsonl."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.measures.results.steps import StepBreakdown
from perfkit.run.records import PHASES, Phases, Step

#: The first steps pay for what happens once (allocator, caches, threads, autotuning): torch's own schedule
#: example waits one step and warms up one. Left out where enough others remain.
_WARM_UP = 2
#: Of the steps left, those whose wall time lies in the middle 80 % are averaged: phases then sum to the
#: step, which medians of phases would not, and one step with a checkpoint or a neighbour's noise in it
#: does not move the typical step.
_TRIM = 0.10


def measure_step_rows(rows: Sequence[Step], *, trim: float = _TRIM) -> StepBreakdown | None:
    """Mean step and phases over the typical timed steps; None where no step was timed.

    Steps inside windows and of the dry run are never averaged; the former give ``window_ns``. ``trim`` is the share
    left out at each end: 0 for the mean of all, with the steps in which something seldom happens.
    """
    own = _own(rows)
    timed, excluded = timed_rows(rows)
    if not timed:
        return None
    ordered = sorted(timed, key=lambda row: row.wall_ns / row.steps)
    cut = int(len(ordered) * trim)
    kept = ordered[cut : len(ordered) - cut]
    if cut:
        excluded["outlier"] = sum(row.steps for row in timed) - sum(row.steps for row in kept)
    steps = sum(row.steps for row in kept)

    def per_step(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return round(sum(known) / steps) if known else None

    windowed = [row for row in own if row.window is not None and not row.extra]
    samples = [row.samples for row in kept if row.samples is not None]
    return StepBreakdown(
        steps=steps,
        wall_ns=per_step([row.wall_ns for row in kept]) or 0,
        median_ns=_quantile(ordered, 0.5),
        p10_ns=_quantile(ordered, 0.1),
        p90_ns=_quantile(ordered, 0.9),
        phases_ns=Phases(**{name: per_step([getattr(row.phases_ns, name) for row in kept]) for name in PHASES}),
        source=f"steps.jsonl, {steps} steps",
        excluded=excluded,
        window_ns=round(sum(row.wall_ns for row in windowed) / sum(row.steps for row in windowed))
        if windowed
        else None,
        samples_per_step=sum(samples) / steps if len(samples) == len(kept) else None,
        gc_ns=per_step([row.gc_ns for row in kept]),
        recompiles=_total([row.recompiles for row in own]),
        memory_peak_bytes=max((peak for row in own if (peak := row.memory_peak_bytes) is not None), default=None),
        alloc_retries=_total([row.alloc_retries for row in own]),
        device_allocs=_total([row.device_allocs for row in own]),
    )


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _own(rows: Sequence[Step]) -> list[Step]:
    """The training steps; where nothing trains, those of the first mode (an evaluation, a test, a prediction)."""
    mode = "train" if any(row.mode == "train" for row in rows) else rows[0].mode if rows else None
    return [row for row in rows if row.mode == mode]


def timed_rows(rows: Sequence[Step]) -> tuple[list[Step], dict[str, int]]:
    """The rows whose times count, and how many steps were left out for which reason."""
    own = _own(rows)
    timed = [row for row in own if row.window is None and not row.dry]
    excluded = {"in a window": sum(row.steps for row in own if row.window is not None)}
    excluded["dry run"] = sum(row.steps for row in own if row.dry)
    if len(timed) > 3 * _WARM_UP:
        # A row that was merged from the warm-up and later steps stays: it stands for many.
        kept = [row for row in timed if row.step + row.steps > _WARM_UP]
        excluded["warm-up"] = sum(row.steps for row in timed) - sum(row.steps for row in kept)
        timed = kept
    return timed, {reason: count for reason, count in excluded.items() if count}


def _quantile(ordered: Sequence[Step], share: float) -> int:
    row = ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
    return round(row.wall_ns / row.steps)
