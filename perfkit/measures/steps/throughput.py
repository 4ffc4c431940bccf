"""Rates of training, percentiles of its steps, and the slowest steps; from the rows of steps.jsonl."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.measures.results.steps import SlowStep, Throughput
from perfkit.measures.steps._timed_rows import phase_columns, timed_rows
from perfkit.run.records import PHASES, Step

#: A percentile needs at least one step above it: p90 ten steps, p99 a hundred.
_NEEDS = {0.5: 1, 0.9: 10, 0.99: 100}
#: Slowest steps that are listed: a page of evidence, not the whole tail.
_SLOWEST = 5


def measure_throughput(rows: Sequence[Step]) -> Throughput | None:
    """Rates and percentiles of the timed steps, the slow ones among them included; None where none was timed.

    Steps inside windows, of the dry run, and of the warm-up are left out. Rates are totals over totals, and time
    spent in validation, which trains nothing, is left out of them. Samples and tokens are None
    unless every step has them. Rows of several merged steps count with their mean.
    """
    timed, excluded = timed_rows(rows)
    if not timed:
        return None
    steps = sum(row.steps for row in timed)
    training_ns = sum(row.wall_ns - (row.phases_ns.validation or 0) for row in timed)
    ordered = sorted(timed, key=_per_step)

    def rate(amounts: list[int | None]) -> float | None:
        known = [amount for amount in amounts if amount is not None]
        return sum(known) / training_ns * 1e9 if training_ns and len(known) == len(amounts) else None

    return Throughput(
        steps=steps,
        steps_per_s=rate([row.steps for row in timed]),
        samples_per_s=rate([row.samples for row in timed]),
        tokens_per_s=rate([row.tokens for row in timed]),
        p50_ns=percentile(ordered, 0.5, steps) or 0,
        p90_ns=percentile(ordered, 0.9, steps),
        p99_ns=percentile(ordered, 0.99, steps),
        slowest=_slowest(timed),
        source=f"steps.jsonl, {steps} steps" + ("" if len(timed) == steps else f" in {len(timed)} rows"),
        excluded=excluded,
    )


def _per_step(row: Step) -> float:
    return row.wall_ns / row.steps


def percentile(ordered: Sequence[Step], share: float, steps: int) -> int | None:
    """The step time that ``share`` of the steps do not exceed; None where there are too few of them.

    ``ordered`` is by time per step, and ``steps`` is how many steps the rows represent.
    """
    if steps < _NEEDS.get(share, 1):
        return None
    passed = 0
    for row in ordered:
        passed += row.steps
        if passed >= share * steps:
            return round(_per_step(row))
    return None


def _slowest(timed: list[Step]) -> tuple[SlowStep, ...]:
    """The slowest single steps, each with the phase that exceeded its own median the most."""
    single = [row for row in timed if row.steps == 1]
    medians = {name: _median([ns or 0 for ns in column]) for name, column in phase_columns(single).items()}
    found = []
    for row in sorted(single, key=lambda row: -row.wall_ns)[:_SLOWEST]:
        beyond = {name: (getattr(row.phases_ns, name) or 0) - medians[name] for name in PHASES}
        phase = max(beyond, key=lambda name: beyond[name])
        found.append(
            SlowStep(
                step=row.step,
                wall_ns=row.wall_ns,
                phase=phase if beyond[phase] > 0 else None,
                beyond_ns=max(0, beyond[phase]),
                gc_ns=row.gc_ns,
                recompiles=row.recompiles,
            )
        )
    return tuple(found)


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0
