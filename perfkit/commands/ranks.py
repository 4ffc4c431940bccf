"""``perfkit ranks``: which ranks of a job the others wait for, and why."""

from __future__ import annotations

import click
from rich.progress import MofNCompleteColumn

from perfkit.commands._node_metrics import node_metrics_option, read_metrics
from perfkit.commands._progress import reading_bar
from perfkit.commands._ranks_reports import check_ranks_gates, passes_gates, print_ranks_as, write_ranks_page
from perfkit.commands._recordings import recording_or_newest
from perfkit.errors import UsageError
from perfkit.ranks.executors import open_executor


@click.command
@click.argument("path", required=False)
@click.argument("page", required=False, metavar="[FILE]")
@click.option(
    "--on",
    metavar="EXECUTOR",
    help="Read the files there: processes:16, dask:HOST:8786, ray:auto. Default: on the cores of this machine.",
)
@click.option("--resume", is_flag=True, help="Take what an earlier call has read of the same files, as far as it came.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON, times in ns.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the diagnosis as markdown.")
@click.option(
    "--fail-on",
    metavar="slow-rank|SEVERITY",
    multiple=True,
    help="Exit with 1 if anything is late, or so late that its correction saves 5% (warning) or 25% (critical) of "
    "the step. May be repeated.",
)
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Also write an HTML page to FILE. Default: ranks.html in the run folder, of traces in the current one.",
)
@click.option("--open", "open_page", is_flag=True, help="Write the page and open it in the browser.")
@node_metrics_option
def ranks(
    path: str | None,
    page: str | None,
    on: str | None,
    resume: bool,
    as_json: bool,
    as_markdown: bool,
    fail_on: tuple[str, ...],
    as_html: bool,
    open_page: bool,
    node_metrics: str | None,
) -> int:
    """Report which ranks of a job the others wait for, why, and what the job would save.

    PATH: Compare the ranks in this run folder, or in this folder or pattern of traces (Kineto or nsys, one for each
    rank); also at a URL: s3://bucket/run. Default: the run in runs/ that started last.

    FILE: Write the page of --html to this file.
    """
    # They load numpy, which `perfkit --help` does not need.
    from perfkit.ranks.path_diagnosis import diagnose_sources
    from perfkit.ranks.rank_sources import find_ranks

    if as_json and as_markdown:
        raise UsageError("choose one of --json and --markdown")
    if page is not None and not (as_html or open_page):
        raise UsageError(f"ranks takes one path; add --html to write a page to {page}")
    check_ranks_gates(fail_on)
    path = recording_or_newest(path)
    metrics = read_metrics(node_metrics)
    with open_executor(on) as executor, reading_bar("reading ranks", MofNCompleteColumn()) as report:
        found = diagnose_sources(find_ranks(path), executor, resume=resume, progress=report, node_metrics=metrics)
    print_ranks_as(found, as_json=as_json, as_markdown=as_markdown)
    if as_html or open_page:
        write_ranks_page(found, path, page, show=open_page)
    return 0 if passes_gates(found, fail_on) else 1
