"""The two sides of a comparison: a diagnosis each, and of a run folder its single steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, TypeAlias

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.measures.results.steps import StepBreakdown
from perfkit.measures.steps.typical_step import measure_typical_step
from perfkit.run.reading import RankFolder, is_run_folder, read_run
from perfkit.run.records import Rank, Step

Source: TypeAlias = "str | os.PathLike[str] | Diagnosis"


class Side(NamedTuple):
    """One side: its diagnosis, and of a run folder its timed rows, rank.json and the name of its script.

    ``step`` is the typical step that is compared, and ``steps`` are those it was made of: where older steps are merged,
    those that have a row of their own, since the mean of a block includes what is rare. ``note`` says so.
    """

    diagnosis: Diagnosis
    step: StepBreakdown | None
    steps: list[Step] = []
    rows: list[Step] = []
    rank: Rank | None = None
    script: str | None = None
    note: str | None = None


def side_of(source: Source) -> Side:
    """Diagnose a source, unless it is a diagnosis."""
    if isinstance(source, Diagnosis):
        return Side(source, source.step)
    diagnosis = diagnose(source)
    folder = Path(source)
    if not is_run_folder(folder):
        return Side(diagnosis, diagnosis.step)
    run = read_run(folder)
    lowest: RankFolder | None = run.ranks[min(run.ranks)] if run.ranks else None
    rows = [row for row in lowest.steps if row.mode == "train" and row.kind == "timed"] if lowest is not None else []
    script = os.path.basename(run.run.command[0]) if run.run is not None and run.run.command else None
    side = Side(diagnosis, diagnosis.step, rows, rows, lowest.rank if lowest is not None else None, script)
    own = [row for row in rows if row.steps == 1]
    typical = measure_typical_step(own) if len(own) < len(rows) else None
    if typical is None:
        return side
    steps = sum(row.steps for row in rows)
    note = f"{len(own):,} of the {steps:,} steps of {diagnosis.source} are compared: those with rows of their own"
    return side._replace(step=typical, steps=own, note=note)
