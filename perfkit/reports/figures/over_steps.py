"""Steps over time: the rows of a run, or the steps of a trace, a few hundred of them at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from perfkit.measures.steps._trace_steps import whole_steps
from perfkit.reports.figures.data import StepSeries, WindowMark
from perfkit.run.reading import RankFolder
from perfkit.run.records import PHASES, Phases, Step, StepKind
from perfkit.trace.columns import Trace

#: A screen has about so many pixels for them.
MOST = 1_000

_Number = TypeVar("_Number", int, float)


def series_of_rows(rank: RankFolder) -> StepSeries | None:
    """The rows of steps.jsonl; neighbours are taken together where there are too many, the slowest step is kept."""
    rows = rank.steps
    if not rows:
        return None
    size = -(-len(rows) // MOST)
    parts = [rows[at : at + size] for at in range(0, len(rows), size)]
    origin = rows[0].start_ns
    calm = [_calm(part) for part in parts]
    slowest = [max(part, key=_per_step) for part in parts]
    phases = {phase: tuple(_mean(part, attrgetter(phase)) for part in calm) for phase in PHASES}
    about = rank.rank
    return StepSeries(
        first_step=tuple(part[0].step for part in parts),
        steps=tuple(sum(row.steps for row in part) for part in parts),
        start_ns=tuple(part[0].start_ns - origin for part in parts),
        wall_ns=tuple(sum(row.wall_ns for row in part) // sum(row.steps for row in part) for part in calm),
        longest_ns=tuple(_per_step(row) for row in slowest),
        longest_step=tuple(row.step for row in slowest),
        state=tuple(next((_state(row) for row in part if _state(row)), "") for part in parts),
        phases_ns={name: values for name, values in phases.items() if any(value is not None for value in values)},
        samples_per_s=_told(tuple(_rate(part, lambda row: row.samples) for part in calm)),
        tokens_per_s=_told(tuple(_rate(part, lambda row: row.tokens) for part in calm)),
        memory_bytes=_told(
            tuple(
                max((row.memory_bytes for row in part if row.memory_bytes is not None), default=None) for part in parts
            )
        ),
        syncs=_told(tuple(_each(part, lambda row: row.syncs) for part in calm)),
        loss=_told(tuple(next((row.loss for row in part if row.loss is not None), None) for part in parts)),
        windows=tuple(
            WindowMark(
                index=window.index,
                first_step=window.first_step,
                last_step=window.last_step,
                file=f"{rank.folder.name}/{window.file}" if window.file is not None else None,
                problem=window.problem,
                reason=window.reason,
            )
            for window in (about.windows if about is not None else ())
        ),
    )


def series_of_trace(trace: Trace) -> StepSeries | None:
    """The steps of a trace, whose phases are known as a mean only."""
    steps = whole_steps(trace)
    if not steps.row.size:
        return None
    kept = slice(0, MOST)
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


_STATES: dict[StepKind, str] = {
    "timed": "",
    "warmup": "window",
    "window": "window",
    "lines": "extra",
    "ops": "extra",
    "dry": "dry",
}


def _state(row: Step) -> str:
    return _STATES[row.kind]


def _calm(part: list[Step]) -> list[Step]:
    """The rows that recording did not slow, where there are any."""
    return [row for row in part if not _state(row)] or part


def _per_step(row: Step) -> int:
    return row.wall_ns // max(1, row.steps)


def _mean(rows: Sequence[Step], phase: Callable[[Phases], int | None]) -> int | None:
    told = [number for row in rows if (number := phase(row.phases_ns)) is not None]
    return sum(told) // max(1, sum(row.steps for row in rows)) if told else None


def _each(rows: Sequence[Step], value: Callable[[Step], int | None]) -> float | None:
    told = [(number, row.steps) for row in rows if (number := value(row)) is not None]
    return round(sum(number for number, _ in told) / max(1, sum(steps for _, steps in told)), 3) if told else None


def _rate(rows: Sequence[Step], value: Callable[[Step], int | None]) -> float | None:
    told = [(number, row.wall_ns) for row in rows if (number := value(row)) is not None]
    wall_ns = sum(wall for _, wall in told)
    return round(1e9 * sum(number for number, _ in told) / wall_ns, 3) if wall_ns else None


def _told(values: tuple[_Number | None, ...]) -> tuple[_Number | None, ...]:
    """The column, empty where nothing was told in it."""
    return values if any(value is not None for value in values) else ()
