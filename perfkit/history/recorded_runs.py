"""The run folders below a folder, what each says of itself, and those that cannot be read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from perfkit._format import duration
from perfkit.errors import RunError
from perfkit.history.results import SkippedRun
from perfkit.run.ending import modified_unix_s, runs
from perfkit.run.reading import RankFolder, is_run_folder, rank_folders, read_run_record
from perfkit.run.records import Rank, Run

#: Folders inside folders that are searched: CI keeps the runs of a job below the job's own folder.
_DEPTH = 3
#: Ranks that are asked for the first that has anything: of a job of thousands the first ones know the step.
_RANKS = 4
#: Times before it come from machines without a clock that is kept while they are off.
_EARLIEST_S = 1_577_836_800  # 2020-01-01
_DAY_S = 86_400
#: Maximum difference of a run's two clocks from its start to its end: clocks are corrected by milliseconds while they
#: run, and set by more.
_SET_NS = 2_000_000_000


class RecordedRun(NamedTuple):
    """A run with its first rank's record; ``run`` is None where run.json is missing or damaged."""

    path: Path
    run: Run | None
    rank: Rank
    files: RankFolder
    start_unix_ns: int
    notes: tuple[str, ...]


def run_folders(folder: Path) -> list[Path]:
    """The run folders in ``folder``, and in its folders, by name."""
    return sorted(_below(folder, _DEPTH))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            inside = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # removed meanwhile, or another user's
        return
    for path in inside:
        if is_run_folder(path):
            yield path
        elif depth > 1:
            yield from _below(path, depth - 1)


def read_recorded(
    folders: list[Path], progress: Callable[[int], None] = lambda _: None
) -> tuple[list[RecordedRun], list[SkippedRun]]:
    """Read what the runs say of themselves, in order of start, and why others were skipped."""
    read: list[RecordedRun] = []
    skipped = []
    for number, folder in enumerate(folders):
        try:
            read.append(_recorded(folder))
        except RunError as error:
            skipped.append(SkippedRun(str(folder), str(error)))
        progress(number + 1)
    return sorted(read, key=lambda one: (one.start_unix_ns, one.path)), skipped


def _recorded(folder: Path) -> RecordedRun:
    """Read run.json and the first rank's rank.json.

    Raises:
        RunError: nothing can be read of it, or a newer perfkit wrote it.
    """
    lost: list[str] = []
    run = read_run_record(folder, lost)
    for index, path in list(rank_folders(folder).items())[:_RANKS]:
        files = RankFolder(path, index)
        if (rank := files.rank) is not None:
            start_ns = _start_unix_ns(rank, folder)
            notes = (*lost, *_clock_notes(rank, start_ns), *_ending(rank))
            return RecordedRun(folder, run, rank, files, start_ns, notes)
        lost += files.lost
    raise RunError("; ".join(lost) or "no rank has written its rank.json")


def _start_unix_ns(rank: Rank, folder: Path) -> int:
    """When a run started; without clocks, when its run.json was written, which is once."""
    if rank.clock_pairs:
        pair = rank.clock_pairs[0]
        return rank.start_ns - pair.perf_ns + pair.unix_ns
    return round(1e9 * (modified_unix_s(folder / "run.json") or modified_unix_s(folder)))


def _clock_notes(rank: Rank, start_ns: int) -> Iterator[str]:
    if not _EARLIEST_S * 1e9 < start_ns < (time.time() + _DAY_S) * 1e9:
        # Not every system converts years that far away.
        day = f"{1970 + start_ns / 1e9 / (365.2425 * _DAY_S):.0f}"
        yield f"its machine's clock was in the year {day}: its place in the order may be wrong"
    if len(rank.clock_pairs) > 1:
        first, last = rank.clock_pairs[0], rank.clock_pairs[-1]
        set_ns = (last.unix_ns - first.unix_ns) - (last.perf_ns - first.perf_ns)
        if abs(set_ns) > _SET_NS:
            way = "forward, or the machine slept for" if set_ns > 0 else "back by"
            yield f"during it the clock was set {way} {duration(abs(set_ns))}"


def _ending(rank: Rank) -> Iterator[str]:
    if rank.ending is None:
        yield "it still runs" if runs(rank) else "it wrote no end"
    elif rank.ending != "finished" and not rank.ending.startswith("stopped after"):
        yield f"it ended with {rank.ending}"
