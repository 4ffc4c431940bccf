"""The two sides of a comparison: a diagnosis each, and of a run folder its single steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import TraceError
from perfkit.measures.results.steps import StepBreakdown
from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.run.reading import RankFolder, is_run_folder, read_run
from perfkit.run.records import Rank, Step

if TYPE_CHECKING:
    from perfkit.measures.steps.step_samples import StepSamples

Source: TypeAlias = "str | os.PathLike[str] | Diagnosis"


class Side(NamedTuple):
    """One side: its diagnosis, and of a run folder its timed rows, rank.json and the name of its script.

    ``step`` is the typical step that is compared, and ``steps`` are those it was made of: where older steps are merged,
    those that have a row of their own, since the mean of a block includes what is rare. ``note`` says so.
    ``samples`` are the times of each step of the trace, ``arguments`` those of the command.
    """

    diagnosis: Diagnosis
    step: StepBreakdown | None
    steps: list[Step] = []
    rows: list[Step] = []
    rank: Rank | None = None
    script: str | None = None
    note: str | None = None
    samples: StepSamples | None = None
    arguments: tuple[str, ...] | None = None


def _diagnose(source: str | os.PathLike[str]) -> tuple[Diagnosis, StepSamples | None]:
    """The diagnosis, and the steps of the trace that it is of."""
    # They load numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.measures.gathering import measure
    from perfkit.measures.steps.step_samples import step_samples
    from perfkit.trace.cached_reader import CachedTraceReader

    read = CachedTraceReader()
    diagnosis = diagnose(measure(source, read=read))
    facts = diagnosis.figures.trace
    try:
        return diagnosis, step_samples(read(Path(facts.path))) if facts is not None else None
    except TraceError:  # it was removed meanwhile
        return diagnosis, None


def side_of(source: Source) -> Side:
    """Diagnose a source, unless it is a diagnosis."""
    if isinstance(source, Diagnosis):
        return Side(source, source.step)
    diagnosis, samples = _diagnose(source)
    folder = Path(source)
    if not is_run_folder(folder):
        return Side(diagnosis, diagnosis.step, samples=samples)
    run = read_run(folder)
    lowest: RankFolder | None = run.ranks[min(run.ranks)] if run.ranks else None
    rows = [row for row in lowest.steps if row.mode == "train" and row.kind == "timed"] if lowest is not None else []
    command = run.run.command if run.run is not None else ()
    side = Side(
        diagnosis=diagnosis,
        step=diagnosis.step,
        steps=rows,
        rows=rows,
        rank=lowest.rank if lowest is not None else None,
        script=os.path.basename(command[0]) if command else None,
        samples=samples,
        arguments=command[1:] if command else None,
    )
    own = [row for row in rows if row.steps == 1]
    typical = measure_typical_step(own) if len(own) < len(rows) else None
    if typical is None:
        return side
    steps = sum(row.steps for row in rows)
    note = f"{len(own):,} of the {steps:,} steps of {diagnosis.source} are compared: those with rows of their own"
    return side._replace(step=typical, steps=own, note=note)
