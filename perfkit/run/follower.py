"""Following a run that is still being written: what is new since the last look, and whether anybody still writes.

Everything here only reads, a bounded part of each file, and takes a file that is being replaced or a row that is half
written for what it is: something to look at again later.
"""

from __future__ import annotations

import os
import re
import socket
from collections import deque
from pathlib import Path

import msgspec

from perfkit._text import without_controls
from perfkit.errors import RunError, UsageError
from perfkit.run.reading import RankFolder, is_run_folder
from perfkit.run.records import Rank, Run, Step

#: Rows of a rank that are kept: some screens of the widest terminal.
MOST_ROWS = 600
#: What is read of steps.jsonl at once, its end: more than `MOST_ROWS` rows of the longest kind.
_TAIL_BYTES = 512 * 1024
#: A run writes rows once a second and rank.json every 30 s. What has not been written to for so long is asleep in one
#: very long step, or dead.
SILENT_S = 120


class StepsTail:
    """The newest rows of a steps.jsonl that grows, and is replaced when its older half is merged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: deque[Step] = deque(maxlen=MOST_ROWS)
        self.damaged = 0
        self._decoder = msgspec.json.Decoder(Step)
        self._file: int | None = None
        self._offset = 0

    def poll(self) -> int:
        """Read what is new; how many rows that was."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._file or stat.st_size < self._offset:
                    self._file, self._offset = stat.st_ino, 0
                whole = stat.st_size - self._offset <= _TAIL_BYTES
                start = self._offset if whole else stat.st_size - _TAIL_BYTES
                file.seek(start)
                data = file.read(_TAIL_BYTES)
        except OSError:
            return 0
        # What follows the last newline is being written; what comes before the first one, where the beginning was
        # left out, is a part of a row.
        end = data.rfind(b"\n") + 1
        begin = 0 if whole else data.find(b"\n", 0, end) + 1
        self._offset = start + end
        return sum(map(self._take, data[begin:end].splitlines()))

    def _take(self, line: bytes) -> bool:
        try:
            row = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.damaged += 1
            return False
        # A file that was replaced begins again with what was read before.
        if self.rows and row.step <= self.rows[-1].step:
            return False
        self.rows.append(row)
        return True


class RankFollower:
    """One rank of a run that goes on; `poll` looks again."""

    def __init__(self, folder: Path, index: int) -> None:
        self.folder = folder
        self.index = index
        self.tail = StepsTail(folder / "steps.jsonl")
        #: rank.json as it was last read; None before it was written.
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
            self.rank = _harmless(RankFolder(self.folder, self.index).rank) or self.rank

    @property
    def written_unix_s(self) -> float:
        """When anything was written last, in unix seconds; 0 where nothing was."""
        return max(_modified(self.folder / name) for name in ("rank.json", "steps.jsonl"))

    @property
    def here(self) -> bool:
        """Whether the rank runs, or ran, on this machine."""
        return self.rank is not None and self.rank.host == socket.gethostname()

    @property
    def gone(self) -> bool:
        """Whether its process ran here and runs no more, though the run's end was not written."""
        return self.rank is not None and self.rank.ending is None and self.here and not process_runs(self.rank.pid)


def _harmless(rank: Rank | None) -> Rank | None:
    """The record with texts that can be shown on a terminal: anyone may have written it, also an exception's text."""
    if rank is None:
        return None
    return msgspec.structs.replace(
        rank,
        host=without_controls(rank.host),
        ending=without_controls(rank.ending, " ") if rank.ending is not None else None,
        notes=tuple(without_controls(note, " ") for note in rank.notes),
    )


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def process_runs(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is another user's
    return True


def end_unix_s(rank: Rank) -> float | None:
    """When a run ended, in unix seconds; None where it has not, or where that is not known."""
    if rank.end_ns is None or not rank.clock_pairs:
        return None
    pair = rank.clock_pairs[-1]
    return (rank.end_ns - pair.perf_ns + pair.unix_ns) / 1e9


class RunFollower:
    """A run folder that is being written, or was."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            RunError: there is no run in the folder, or one of a newer perfkit.
        """
        if not is_run_folder(path):
            what = "holds no run" if path.is_dir() else "is no folder"
            raise RunError(f"{path} {what}: name a run folder, as `perfkit run --out` or profile() makes it")
        self.path = path
        self.ranks: dict[int, RankFollower] = {}
        self._run: Run | None = None
        self.find_ranks()

    def find_ranks(self) -> None:
        """Take up ranks that have come since."""
        for folder in self.path.glob("rank-*"):
            match = re.fullmatch(r"rank-(\d{1,7})", folder.name)
            if match and int(match[1]) not in self.ranks and folder.is_dir() and not folder.is_symlink():
                self.ranks[int(match[1])] = RankFollower(folder, int(match[1]))
        self.ranks = dict(sorted(self.ranks.items()))

    @property
    def run(self) -> Run | None:
        """run.json, None until rank 0 has written it, or where it is damaged."""
        if self._run is None:
            try:
                data = (self.path / "run.json").read_bytes()
                self._run = msgspec.json.decode(data, type=Run)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                return None
        return self._run


def newest_run(folder: Path) -> Path:
    """The run that was begun last in a folder of runs.

    Raises:
        UsageError: there is none.
    """
    runs = [path for path in folder.glob("*") if is_run_folder(path)]
    if not runs:
        raise UsageError(f"there is no run in {folder}: name a run folder, or start one with `perfkit run`")
    # run.json is written once, when a run begins; rank.json again and again.
    return max(runs, key=lambda path: _modified(path / "run.json") or _modified(path))
