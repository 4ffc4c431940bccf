"""Steps over time: the rows of a run or the steps of a trace, at most `MAX_ROWS` of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import msgspec

from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.reports.figures.data import StepSeries
from perfkit.run.reading import RankFolder
from perfkit.run.records import PHASES, Step, StepKind
from perfkit.trace.columns import Trace

#: About the width of a chart in pixels.
MAX_ROWS = 1_000

#: Kind of a step -> how its row is marked.
_STATES: dict[StepKind, str] = {
    "timed": "",
    "warmup": "window",
    "window": "window",
    "lines": "extra",
    "ops": "extra",
    "memory": "extra",
    "dry": "dry",
}


def series_of_rows(rank: RankFolder) -> StepSeries | None:
    """The rows of steps.jsonl; too many are merged with their neighbours, and the slowest step of each is kept."""
    rows = rank.steps
    if not rows:
        return None
    parts = _parts(rows)
    timed = [[row for row in part if row.kind == "timed"] or part for part in parts]
    slowest = [max(part, key=_per_step) for part in parts]

    def column(of: Sequence[list[Step]], value: Callable[[list[Step]], Any]) -> tuple[Any, ...]:
        """A value for each part; empty if all are None."""
        values = tuple(value(part) for part in of)
        return values if any(one is not None for one in values) else ()

    phases = {phase: column(timed, partial(_phase_mean, phase)) for phase in PHASES}
    return StepSeries(
        first_step=tuple(part[0].step for part in parts),
        steps=tuple(sum(row.steps for row in part) for part in parts),
        start_ns=tuple(part[0].start_ns - rows[0].start_ns for part in parts),
        wall_ns=tuple(sum(row.wall_ns for row in part) // sum(row.steps for row in part) for part in timed),
        longest_ns=tuple(_per_step(row) for row in slowest),
        longest_step=tuple(row.step for row in slowest),
        state=tuple(next((_STATES[row.kind] for row in part if row.kind != "timed"), "") for part in parts),
        phases_ns={phase: values for phase, values in phases.items() if values},
        samples_per_s=column(timed, lambda part: _ratio(part, "samples", "wall_ns", 1e9)),
        tokens_per_s=column(timed, lambda part: _ratio(part, "tokens", "wall_ns", 1e9)),
        memory_bytes=column(parts, lambda part: max(_known(part, "memory_bytes"), default=None)),
        syncs=column(timed, lambda part: _ratio(part, "syncs", "steps")),
        loss=column(parts, lambda part: next(iter(_known(part, "loss")), None)),
        windows=tuple(
            msgspec.structs.replace(window, file=window.file and f"{rank.folder.name}/{window.file}")
            for window in (rank.rank.windows if rank.rank is not None else ())
        ),
    )


def _parts(rows: Sequence[Step]) -> list[list[Step]]:
    """The rows in at most `MAX_ROWS` parts of equally many steps; a merged row may have more."""
    size = -(-sum(row.steps for row in rows) // MAX_ROWS)
    parts: list[list[Step]] = []
    steps = size
    for row in rows:
        if steps >= size:
            parts.append([])
            steps = 0
        parts[-1].append(row)
        steps += row.steps
    return parts


def series_of_trace(trace: Trace) -> StepSeries | None:
    """The steps of a trace; their phases are known only as a mean."""
    steps = whole_steps(trace)
    if not steps.row.size:
        return None
    kept = slice(0, MAX_ROWS)
    walls = tuple((steps.end_ns - steps.start_ns)[kept].tolist())
    numbers = tuple(steps.number[kept].tolist())
    return StepSeries(
        first_step=numbers,
        steps=(1,) * len(walls),
        start_ns=tuple((steps.start_ns - steps.start_ns[0])[kept].tolist()),
        wall_ns=walls,
        longest_ns=walls,
        longest_step=numbers,
        state=("",) * len(walls),
        phases_ns={},
    )


def _per_step(row: Step) -> int:
    return row.wall_ns // max(1, row.steps)


def _known(rows: Sequence[Step], field: str) -> list[Any]:
    return [value for row in rows if (value := attrgetter(field)(row)) is not None]


def _phase_mean(phase: str, rows: Sequence[Step]) -> int | None:
    known = _known(rows, f"phases_ns.{phase}")
    return sum(known) // max(1, sum(row.steps for row in rows)) if known else None


def _ratio(rows: Sequence[Step], field: str, per: Literal["steps", "wall_ns"], scale: float = 1.0) -> float | None:
    """The sum of a field over the sum of another, over the rows that have it."""
    known = [row for row in rows if getattr(row, field) is not None]
    total = sum(getattr(row, per) for row in known)
    return round(scale * sum(getattr(row, field) for row in known) / total, 3) if total else None
