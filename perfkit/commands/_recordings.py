"""The run or trace that a command reads: the one that was named, else the run that started last."""

from __future__ import annotations

from pathlib import Path

from perfkit._stderr import print_message
from perfkit.errors import UsageError
from perfkit.run.folder_claim import RUNS
from perfkit.run.run_list import runs_by_start


def recording(path: str) -> str:
    """The path or URL of a recording.

    Raises:
        UsageError: it is a program, which another command records.
    """
    if path.endswith(".py") and Path(path).is_file():
        raise UsageError(f"{path} is a program, not a recording: `perfkit run {path}` records and diagnoses it")
    return path


def recording_or_newest(path: str | None) -> str:
    """The recording that was named; without a name the run that started last, which is printed.

    Raises:
        UsageError: `recording`, and `newest_runs`.
    """
    if path is not None:
        return recording(path)
    (newest,) = newest_runs(1)
    print_message(f"the newest run is {newest}")
    return str(newest)


def newest_runs(count: int) -> list[Path]:
    """The last ``count`` runs of the folder in which runs are recorded, in the order in which they started.

    Raises:
        UsageError: there are fewer.
    """
    runs = runs_by_start()
    if len(runs) < count:
        wanted = "a run" if count == 1 else f"{count} runs"
        raise UsageError(
            f"{RUNS}/ must hold {wanted}, it holds {len(runs) or 'none'}: record one with `perfkit run train.py`, or "
            "name the path"
        )
    return runs[-count:]
