"""The two sides of a comparison: a diagnosis each, and of a run folder its single steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, TypeAlias

from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.run.reading import RankFolder, is_run_folder, read_run
from perfkit.run.records import Rank, Step

Source: TypeAlias = "str | os.PathLike[str] | Diagnosis"


class Side(NamedTuple):
    """One side: its diagnosis, and of a run folder its timed steps, rank.json and the name of its script."""

    diagnosis: Diagnosis
    steps: list[Step]
    rank: Rank | None
    script: str | None


def side_of(source: Source) -> Side:
    """Diagnose a source, unless it is a diagnosis."""
    if isinstance(source, Diagnosis):
        return Side(source, [], None, None)
    folder = Path(source)
    if not is_run_folder(folder):
        return Side(diagnose(source), [], None, None)
    run = read_run(folder)
    lowest: RankFolder | None = run.ranks[min(run.ranks)] if run.ranks else None
    rows = lowest.steps if lowest is not None else ()
    timed = [row for row in rows if row.mode == "train" and row.kind == "timed"]
    script = os.path.basename(run.run.command[0]) if run.run is not None and run.run.command else None
    return Side(diagnose(source), timed, lowest.rank if lowest is not None else None, script)
