"""``perfkit compare``: what got faster or slower between two runs."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from perfkit import comparison
from perfkit.errors import UsageError
from perfkit.reports.json import write_json
from perfkit.reports.terminal import print_comparison, stdout_console
from perfkit.run.reading import is_run_folder


def compare(
    before: str | None = typer.Argument(None, help="A run folder or trace. Default: the last run but one in runs/."),
    after: str | None = typer.Argument(None, help="The run or trace to compare with it. Default: the last run."),
    as_json: bool = typer.Option(False, "--json", help="Print the comparison as JSON."),
) -> int:
    """Compare two runs or traces: per phase and finding, with "no difference" as a possible answer.

    Without arguments, the last two runs in runs/.
    """
    if before is None:
        first, second = last_two(Path("runs"))
    elif after is None:
        raise UsageError(f"compare takes two runs, or none for the last two in runs/; got only {before}")
    else:
        first, second = Path(before), Path(after)
    answer = comparison.compare(first, second)
    if as_json:
        write_json(answer, sys.stdout)
    else:
        print_comparison(answer, stdout_console())
    return 0


def last_two(folder: Path) -> tuple[Path, Path]:
    """The two newest run folders, the older one first.

    Raises:
        UsageError: there are fewer than two.
    """
    found = [path for path in folder.iterdir() if is_run_folder(path)] if folder.is_dir() else []
    newest = sorted(found, key=lambda path: path.stat().st_mtime)
    if len(newest) < 2:
        raise UsageError(f"there are {len(newest)} runs in {folder}/, two are needed: name them, perfkit compare A B")
    return newest[-2], newest[-1]
