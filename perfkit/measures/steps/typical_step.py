"""Where the time of a run's typical and mean step goes, from the rows of steps.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from perfkit.measures.results.steps import MeanStep, StepBreakdown, TypicalStep
from perfkit.measures.steps._timed_rows import own_rows, phase_columns, recorded_validation, timed_rows
from perfkit.run.records import PHASES, Phases, Step, Waits

#: Of the steps left, those whose wall time lies in the middle 80 % are averaged: phases then sum to the
#: step, which medians of phases would not, and one step with a checkpoint or another program's noise in it
#: does not change the typical step.
_TRIM = 0.10


_Breakdown = TypeVar("_Breakdown", bound=StepBreakdown)


def measure_typical_step(rows: Sequence[Step]) -> TypicalStep | None:
    """Mean step and phases of the timed steps without outliers; None where no step was timed."""
    return _mean(TypicalStep, rows, _TRIM)


def measure_mean_step(rows: Sequence[Step]) -> MeanStep | None:
    """Mean step and phases of all timed steps; None where no step was timed.

    It has the validation of recorded steps where no timed one has any.
    """
    mean = _mean(MeanStep, rows, 0)
    if mean is None:
        return None
    validation, _ = recorded_validation(rows, timed_rows(rows)[0])
    if not validation:
        return mean
    each = round(validation / mean.steps)
    phases = msgspec.structs.replace(mean.phases_ns, validation=each)
    return msgspec.structs.replace(mean, wall_ns=mean.wall_ns + each, phases_ns=phases)


def _mean(kind: type[_Breakdown], rows: Sequence[Step], trim: float) -> _Breakdown | None:
    """The mean of the timed steps without the share ``trim`` at each end.

    Steps inside windows and of the dry run are never averaged; the former give ``window_ns``.
    """
    own = own_rows(rows)
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

    windowed = [row for row in own if row.kind in ("warmup", "window")]
    samples = [row.samples for row in kept if row.samples is not None]
    return kind(
        steps=steps,
        wall_ns=per_step([row.wall_ns for row in kept]) or 0,
        median_ns=_quantile(ordered, 0.5),
        p10_ns=_quantile(ordered, 0.1),
        p90_ns=_quantile(ordered, 0.9),
        phases_ns=Phases(**{name: per_step(column) for name, column in phase_columns(kept).items()}),
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
        waited_phases_ns=_mean_waits(kept),
    )


def _mean_waits(rows: Sequence[Step]) -> Waits | None:
    """The mean waits of the rows that have any: those before the program set up its process group do not."""
    known = [row for row in rows if row.waited_phases_ns is not None]
    if not known:
        return None
    steps = sum(row.steps for row in known)
    sums = {name: sum(getattr(row.waited_phases_ns, name) or 0 for row in known) for name in PHASES}
    return Waits(**{name: round(ns / steps) for name, ns in sums.items() if ns})


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _quantile(ordered: Sequence[Step], share: float) -> int:
    row = ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
    return round(row.wall_ns / row.steps)
