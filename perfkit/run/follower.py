"""Following a run that is still being written: what is new since the last poll, and whether its process still runs.

It only reads, a bounded part of each file. A file that is being replaced and a half-written row are read at the next
poll.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from perfkit._regular_file import read_regular
from perfkit._text import printable
from perfkit._versioned_json import MAX_JSON_BYTES, decode_json
from perfkit.errors import RunError, UsageError
from perfkit.run.ending import is_local, runs, written_unix_s
from perfkit.run.new_rows import NewRows
from perfkit.run.reading import RankFolder, is_run_folder, rank_folders
from perfkit.run.records import Rank, Run, Step

#: Rows that are kept per rank: some screens of the widest terminal.
MAX_SHOWN_ROWS = 600
#: Bytes of steps.jsonl that are read at once, from its end: more than `MAX_SHOWN_ROWS` rows of the longest kind.
_TAIL_BYTES = 512 * 1024


class StepsTail:
    """The newest rows of a steps.jsonl that grows, and is replaced when its older rows are merged."""

    def __init__(self, path: Path) -> None:
        self.rows: deque[Step] = deque(maxlen=MAX_SHOWN_ROWS)
        self._new = NewRows(path, most_bytes=_TAIL_BYTES)

    @property
    def damaged(self) -> int:
        """How many rows were damaged and skipped."""
        return self._new.damaged

    def poll(self) -> int:
        """Read the new rows; returns their number."""
        found = 0
        with suppress(OSError):  # it is not there yet
            for rows in self._new.read():
                self.rows.extend(rows)
                found += len(rows)
        return found


class RankFollower:
    """One rank of a run; `poll` reads what is new."""

    def __init__(self, folder: Path, index: int) -> None:
        self.folder = folder
        self.index = index
        self.tail = StepsTail(folder / "steps.jsonl")
        #: rank.json at the last poll; None: not written yet.
        self.rank: Rank | None = None
        self._stamp: tuple[int, int] | None = None

    def poll(self) -> None:
        """Read new rows, and rank.json if it was rewritten."""
        self.tail.poll()
        try:
            stat = os.stat(self.folder / "rank.json")
        except OSError:
            return
        if (stamp := (stat.st_mtime_ns, stat.st_ino)) != self._stamp:
            self._stamp = stamp
            self.rank = _without_controls(RankFolder(self.folder, self.index).rank) or self.rank

    @property
    def written_unix_s(self) -> float:
        """When anything was written last, in unix seconds; 0: nothing yet."""
        return written_unix_s(self.folder)

    @property
    def is_local(self) -> bool:
        """Whether the rank runs, or ran, on this machine."""
        return self.rank is not None and is_local(self.rank)

    @property
    def died(self) -> bool:
        """Whether its process ran on this machine and has ended without writing the run's end."""
        return self.rank is not None and self.rank.ending is None and self.is_local and not runs(self.rank)


def _without_controls(rank: Rank | None) -> Rank | None:
    """The record without control characters: anyone may have written it, and a terminal shows its texts."""
    if rank is None:
        return None
    return msgspec.structs.replace(
        rank,
        host=printable(rank.host),
        ending=printable(rank.ending, " ") if rank.ending is not None else None,
        notes=tuple(printable(note, " ") for note in rank.notes),
    )


def end_unix_s(rank: Rank) -> float | None:
    """When a run ended, in unix seconds; None: it has not, or that is unknown."""
    if rank.end_ns is None or not rank.clock_pairs:
        return None
    pair = rank.clock_pairs[-1]
    return (rank.end_ns - pair.perf_ns + pair.unix_ns) / 1e9


class RunFollower:
    """A run folder, finished or still being written."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            RunError: the folder holds no run, or a newer perfkit wrote it.
        """
        if not is_run_folder(path):
            what = "holds no run" if path.is_dir() else "is not a folder"
            raise RunError(f"{path} {what}: pass a run folder, as `perfkit run --out` or profile() writes it")
        self.path = path
        self.ranks: dict[int, RankFollower] = {}
        self._run: Run | None = None
        self.find_ranks()

    def find_ranks(self) -> None:
        """Add the ranks that have started since the last call."""
        for index, folder in rank_folders(self.path).items():
            if index not in self.ranks:
                self.ranks[index] = RankFollower(folder, index)
        self.ranks = dict(sorted(self.ranks.items()))

    def rank(self, index: int) -> RankFollower:
        """One rank.

        Raises:
            UsageError: it has not started.
        """
        if index not in self.ranks:
            available = ", ".join(map(str, list(self.ranks)[:8])) or "none"
            raise UsageError(f"{self.path} has no rank {index} (available: {available})")
        return self.ranks[index]

    @property
    def run(self) -> Run | None:
        """run.json; None: rank 0 has not written it yet, or it is damaged."""
        if self._run is None:
            try:
                self._run = decode_json(read_regular(self.path / "run.json", MAX_JSON_BYTES, inside=self.path), Run)
            except (OSError, msgspec.DecodeError):
                return None
        return self._run
