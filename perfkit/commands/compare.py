"""``perfkit compare``: what became faster or slower between two runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from perfkit import comparison
from perfkit.commands._pages import write_page
from perfkit.commands._progress import working
from perfkit.commands._recordings import newest_runs, recording
from perfkit.comparison.memory import MEMORY
from perfkit.errors import UsageError
from perfkit.reports.console import stdout_console
from perfkit.reports.json import write_json
from perfkit.reports.markdown import write_markdown
from perfkit.reports.terminal import print_comparison
from perfkit.run.folder_claim import RUNS

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%?")


@click.command
@click.argument("before", required=False)
@click.argument("after", required=False)
@click.argument("page", required=False, metavar="[FILE]")
@click.option(
    "--max-slowdown", metavar="PERCENT", help="Exit with 1 if the step is slower by more than this, as in 3%."
)
@click.option(
    "--max-more",
    metavar="NAME[=N]",
    multiple=True,
    help="Exit with 1 if there are more than N (default 0) additional syncs, recompiles, graph-breaks, launches or "
    "ops, or if the peak of memory is larger by more than N, as in memory=5%. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the comparison as markdown.")
@click.option("--html", "as_html", is_flag=True, help="Also write an HTML page to FILE. Default: comparison.html.")
@click.option("--open", "open_page", is_flag=True, help="Write the page and open it in the browser.")
def compare(
    before: str | None,
    after: str | None,
    page: str | None,
    max_slowdown: str | None,
    max_more: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
    as_html: bool,
    open_page: bool,
) -> int:
    """Compare two runs, traces or ncu reports by phase, range, op, kernel and finding.

    Reports whether a difference is more than noise, and whether both did the same work.

    BEFORE: Compare this run folder, trace or ncu report. Default: the run in runs/ that started second last.

    AFTER: Compare with this run or trace. Default: the run in runs/ that started last.

    FILE: Write the page of --html to this file.
    """
    if as_json and as_markdown:
        raise UsageError("choose one of --json and --markdown")
    if page is not None and not (as_html or open_page):
        raise UsageError(f"compare takes two paths; add --html to write a page to {page}")
    slowdown = _percent("--max-slowdown", max_slowdown) if max_slowdown is not None else None
    more = dict(_count(word) for word in max_more)
    if before is not None and after is None:
        raise UsageError(f"compare takes two runs, or none for the newest two in {RUNS}/; got only {before}")
    first, second = (
        (recording(before), recording(after)) if before is not None and after is not None else newest_runs(2)
    )
    with working(f"comparing {Path(first).name} with {Path(second).name}"):
        answer = comparison.compare(first, second, max_slowdown=slowdown, max_more=more)
    if as_json:
        write_json(answer, sys.stdout)
    elif as_markdown:
        write_markdown(answer, sys.stdout)
    else:
        print_comparison(answer, stdout_console())
    if as_html or open_page:
        # Figures load numpy, which `perfkit run` must leave to the program.
        from perfkit.reports.figures import figures_of_comparison

        with working("drawing the page"):
            data = figures_of_comparison(answer)
        write_page(data, page or "comparison.html", show=open_page)
    return 1 if answer.broken else 0


def _percent(option: str, word: str) -> float:
    match = _PERCENT.fullmatch(word.strip())
    if match is None:
        raise UsageError(f"{option} takes a percentage of at least 0 (3%), got {word!r}")
    return float(match[1]) / 100


def _count(word: str) -> tuple[str, float]:
    name, _, number = word.partition("=")
    if name.strip() == MEMORY:
        return MEMORY, _percent("--max-more memory", number) if number else 0.0
    try:
        return name.strip().replace("-", " "), float(number) if number else 0.0
    except ValueError:
        raise UsageError(f"--max-more takes NAME or NAME=N (syncs=0), got {word!r}") from None
