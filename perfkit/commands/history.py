"""``perfkit history``: runs of one program over time, where its step changed, and objectives for CI."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.progress import MofNCompleteColumn

from perfkit.commands._pages import write_page
from perfkit.commands._progress import reading_bar
from perfkit.errors import UsageError
from perfkit.reports.console import stdout_console
from perfkit.reports.json import write_json
from perfkit.run.folder_claim import RUNS


@click.command
@click.argument("runs", default=str(RUNS))
@click.argument("page", required=False, metavar="[FILE]")
@click.option(
    "--objective",
    metavar='"METRIC <= LIMIT"',
    multiple=True,
    help="Exit with 1 if the newest run does not hold this: step (the median), p90, a phase, memory, host-memory, "
    'syncs, samples or energy, as in "step <= 40ms", "memory <= 2GB", "syncs <= 0". May be repeated.',
)
@click.option("--workload", metavar="TEXT", help="Show only workloads whose command or machine contains this text.")
@click.option(
    "--any-host", is_flag=True, help="Count runs on machines of different names, but of one kind, as one workload."
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Read the newest N runs of each workload.",
)
@click.option("--all", "every", is_flag=True, help="Show every run that was read. Default: the newest 20.")
@click.option("--json", "as_json", is_flag=True, help="Print the history as JSON, times in ns.")
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Also write an HTML page to FILE. Default: history.html in the folder of the runs.",
)
@click.option("--open", "open_page", is_flag=True, help="Write the page and open it in the browser.")
def history(
    runs: str,
    page: str | None,
    objective: tuple[str, ...],
    workload: str | None,
    any_host: bool,
    limit: int,
    every: bool,
    as_json: bool,
    as_html: bool,
    open_page: bool,
) -> int:
    """Report how the step of a program changed from run to run, and since which commit.

    Runs of the same command on the same machine are one workload; each has a history of its own.

    RUNS: Read the runs in this folder. Default: runs.

    FILE: Write the page of --html to this file.
    """
    # They load numpy, which `perfkit run`, for which the commands are imported too, must leave to the program.
    from perfkit.history.gathering import read_history
    from perfkit.history.objectives import parse_objective
    from perfkit.reports.history import print_history

    if page is not None and not (as_html or open_page):
        raise UsageError(f"history takes one folder; add --html to write a page to {page}")
    objectives = [parse_objective(text) for text in objective]
    with reading_bar("reading runs", MofNCompleteColumn()) as report:
        found = read_history(
            Path(runs), limit=limit, workload=workload, any_host=any_host, objectives=objectives, progress=report
        )
    if as_json:
        write_json(found, sys.stdout)
    else:
        print_history(found, stdout_console(), all=every)
    if as_html or open_page:
        # Figures load numpy, see above.
        from perfkit.reports.figures.history import figures_of_history

        write_page(figures_of_history(found), page or Path(runs) / "history.html", show=open_page)
    return 1 if found.broken else 0
