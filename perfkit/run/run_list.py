"""The runs of a folder, by when they started."""

from __future__ import annotations

from pathlib import Path

from perfkit.errors import PerfkitError
from perfkit.run.ending import modified_unix_s
from perfkit.run.folder_claim import RUNS
from perfkit.run.reading import RankFolder, is_run_folder, matching, rank_folders


def runs_by_start(folder: Path = RUNS) -> list[Path]:
    """The run folders in ``folder``, the run that started last at the end.

    The start is the recorded one: looking at a run writes files into its folder and so changes the folder's own time.
    """
    found = [path for path in matching(folder, "*") if is_run_folder(path)]
    return sorted(found, key=lambda path: (start_unix_s(path), path.name))


def start_unix_s(run: Path) -> float:
    """When a run started, in unix seconds; where nothing was recorded yet, when its folder was made."""
    for index, folder in rank_folders(run).items():
        try:
            rank = RankFolder(folder, index).rank
        except PerfkitError:  # of a newer perfkit
            continue
        if rank is not None and rank.clock_pairs:
            pair = rank.clock_pairs[0]
            return (rank.start_ns - pair.perf_ns + pair.unix_ns) / 1e9
    # run.json is written once, when a run starts.
    return modified_unix_s(run / "run.json") or modified_unix_s(run)
