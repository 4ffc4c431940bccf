"""Writing a run folder: never half a file. Rewritten files are replaced whole; rows are appended as whole lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from perfkit.run.arrays import write_range_rows
from perfkit.run.atomic import write_atomically
from perfkit.run.records import AppliedChanges, Failure, Lines, MachineLimits, RangeRow, Rank, Run, Step, Syncs
from perfkit.run.step_file import StepFile

_ENCODER = msgspec.json.Encoder()
_FILES = {
    Run: "run.json",
    Rank: "rank.json",
    Lines: "lines.json",
    Syncs: "syncs.json",
    Failure: "failure.json",
    MachineLimits: "limits.json",
    AppliedChanges: "changes.json",
}


def write_record(folder: Path, record: Run | Rank | Lines | Syncs | Failure | MachineLimits | AppliedChanges) -> None:
    """Write a record into its file: run.json in the run's folder, all others in a rank's."""
    write_atomically(folder / _FILES[type(record)], msgspec.json.format(_ENCODER.encode(record), indent=2))


class RankWriter:
    """Writes one rank's part of a run folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder / f"rank-{rank}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._steps = StepFile(self.folder / "steps.jsonl")

    def append_steps(self, rows: Sequence[Step]) -> None:
        """Append rows to steps.jsonl and hand them to the system, so that a kill loses none of them."""
        if rows:
            self._steps.append(rows)

    def write(self, record: Rank | Lines | Syncs | Failure) -> None:
        """Rewrite the record's file."""
        write_record(self.folder, record)

    def write_ranges(self, rows: Sequence[RangeRow]) -> None:
        """Rewrite ranges.npz."""
        write_range_rows(self.folder / "ranges.npz", rows)

    def close(self) -> None:
        """Close steps.jsonl."""
        self._steps.close()
