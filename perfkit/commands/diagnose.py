"""``perfkit diagnose``: the diagnosis of a run folder or a trace file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import MofNCompleteColumn

from perfkit import diagnosis as diagnoses
from perfkit._stderr import print_message
from perfkit.commands._batch_fit import report_batch_fit
from perfkit.commands._node_metrics import node_metrics_option, read_metrics
from perfkit.commands._pages import write_page
from perfkit.commands._progress import reading_bar, working
from perfkit.commands._ranks_reports import check_ranks_gates, passes_gates, print_ranks_as, write_ranks_page
from perfkit.commands._recordings import recording_or_newest
from perfkit.commands._tables import TableRequest, print_one_table
from perfkit.diagnosis import Diagnosis
from perfkit.errors import UsageError
from perfkit.findings import SEVERITIES
from perfkit.reports.console import stdout_console
from perfkit.reports.json import write_json
from perfkit.reports.markdown import write_markdown
from perfkit.reports.ranks.terminal import print_ranks_verdict
from perfkit.reports.terminal import print_diagnosis
from perfkit.rules._engine import find_rules
from perfkit.run.atomic import write_atomically
from perfkit.run.reading import is_run_folder, rank_folders
from perfkit.run.remote import is_url

if TYPE_CHECKING:
    from perfkit.ranks.diagnosing import RanksDiagnosis
    from perfkit.ranks.path_diagnosis import DiagnosedRanks
    from perfkit.ranks.rank_sources import RankSources
    from perfkit.trace.cached_reader import ReadTrace
    from perfkit.trace.dcgm import NodeMetrics


@click.command
@click.argument("recorded", required=False, metavar="[PATH]")
@click.argument("page", required=False, metavar="[FILE]")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Show all findings, their evidence, and the rules that could not be asked. Default: five.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the diagnosis as markdown.")
@click.option("--out", help="Also write the diagnosis as JSON to this file.")
@click.option(
    "--fail-on",
    metavar="RULE|SEVERITY",
    multiple=True,
    help="Exit with 1 if this rule, or any rule at or above this severity, has a finding. May be repeated.",
)
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Also write an HTML page to FILE. Default: report.html in the run folder, ranks.html for several ranks.",
)
@click.option("--open", "open_page", is_flag=True, help="Write the page and open it in the browser.")
@click.option(
    "--table", metavar="NAME", help="Print one table instead of the verdict: ops, kernels, launches, api, ..."
)
@click.option("--sort", metavar="COLUMN", help="Sort the table by this column.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    help="Print N rows of the table. Default: 30 on a terminal, else all.",
)
@click.option("--by", metavar="GROUP", help="Group the table by shape, module, line or step; collectives by size.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the table as CSV, with times in ns.")
@click.option(
    "--batch-fits",
    "batch",
    metavar="N",
    type=click.IntRange(min=1),
    help="Report only whether a batch of N samples would fit into memory, from the batch sizes that the run or "
    "perfkit try --sweep batch-size has measured. Exit with 1 if it does not.",
)
@node_metrics_option
# Of `perfkit watch`, for a run that goes on: diagnosis.json is of the whole run.
@click.option("--early", is_flag=True, hidden=True)
def diagnose(
    recorded: str | None,
    page: str | None,
    every: bool,
    as_json: bool,
    as_markdown: bool,
    out: str | None,
    fail_on: tuple[str, ...],
    as_html: bool,
    open_page: bool,
    table: str | None,
    sort: str | None,
    limit: int | None,
    by: str | None,
    as_csv: bool,
    batch: int | None,
    node_metrics: str | None,
    early: bool,
) -> int:
    """Report what dominates a training step, on which lines, what to change and what that saves.

    PATH: Diagnose this run folder, Kineto trace (.json, .json.gz), nsys report (.nsys-rep, .sqlite), ncu report
    (.ncu-rep, or .csv from ncu --csv), or folder of several ranks' traces. Default: the run in runs/ that started last.

    FILE: Write the page of --html to this file.
    """
    # Loads numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.measures.gathering import measure
    from perfkit.ranks.rank_sources import find_ranks
    from perfkit.trace import read_trace
    from perfkit.trace.cached_reader import CachedTraceReader

    if as_json and as_markdown:
        raise UsageError("choose one of --json and --markdown")
    if page is not None and not (as_html or open_page):
        raise UsageError(f"diagnose takes one path; add --html to write a page to {page}")
    for word in fail_on:
        _check_gate(word)
    asked = TableRequest(table, sort, limit, by, as_csv, as_json)
    wants_table = asked.check()
    if (as_html or open_page) and page is None and recorded is not None and recorded.endswith(".html"):
        recorded, page = None, recorded  # --html FILE of the newest run
    path = recording_or_newest(recorded)
    if wants_table:
        return print_one_table(path, asked)
    if (several := _several_ranks(path)) is not None:
        check_ranks_gates(fail_on)
        ranks = _diagnose_ranks(several, read_metrics(node_metrics))
        _write_out(ranks.diagnosis, out)
        print_ranks_as(ranks, as_json=as_json, as_markdown=as_markdown)
        if as_html or open_page:
            write_ranks_page(ranks, path, page, show=open_page)
        return 0 if passes_gates(ranks, fail_on) else 1
    # A page needs the trace a second time.
    read = CachedTraceReader() if as_html or open_page else read_trace
    with reading_bar(f"reading {Path(path).name}") as report:
        found = measure(path, progress=report, read=read, node_metrics=read_metrics(node_metrics))
    if batch is not None:
        return 0 if report_batch_fit(found, path, batch, as_json=as_json) else 1
    diagnosis = diagnoses.diagnose(found)
    _write_out(diagnosis, out)
    if not early and is_run_folder(Path(path)):
        file = Path(path) / "diagnosis.json"
        _try_to_write(file, lambda: write_atomically(file, diagnosis.to_json().encode()))
    if as_json:
        write_json(diagnosis, sys.stdout)
    elif as_markdown:
        write_markdown(diagnosis, sys.stdout)
    else:
        console = stdout_console()
        print_diagnosis(diagnosis, console, all=every)
        if len(rank_folders(Path(path))) > 1:
            print_ranks_verdict(_diagnose_ranks(find_ranks(path), read_metrics(node_metrics)), console)
    if as_html or open_page:
        _write_page(diagnosis, path, page, show=open_page, read=read)
    return 1 if any(_has_finding(diagnosis, word) for word in fail_on) else 0


def _several_ranks(path: str) -> RankSources | None:
    """The ranks of a folder or pattern of traces, or of the folders of a run's nodes; None for anything else."""
    place = Path(path)
    if is_url(path) or is_run_folder(place) or not (place.is_dir() or (has_magic(path) and not place.exists())):
        return None
    # It loads numpy, see above.
    from perfkit.ranks.rank_sources import find_ranks

    sources = find_ranks(path)
    return sources if len(sources.ranks) > 1 else None


def _diagnose_ranks(sources: RankSources, metrics: NodeMetrics | None) -> DiagnosedRanks:
    # It loads numpy, see above.
    from perfkit.ranks.path_diagnosis import diagnose_sources

    with reading_bar("reading ranks", MofNCompleteColumn()) as report:
        return diagnose_sources(sources, resume=True, progress=report, node_metrics=metrics)


def _write_out(diagnosis: Diagnosis | RanksDiagnosis, out: str | None) -> None:
    """Write the file of --out."""
    if out is not None:
        try:
            write_atomically(Path(out), diagnosis.to_json().encode())
        except OSError as error:
            raise UsageError(f"the diagnosis cannot be written to {out}: {error.strerror}") from error


def _write_page(diagnosis: Diagnosis, path: str, page: str | None, *, show: bool, read: ReadTrace) -> None:
    """Write the page, and into a run folder the figures that other pages draw."""
    # Figures load numpy, see above.
    from perfkit.reports.figures import FILE, figures_of, write_figures

    with working("drawing the page"):
        data, folder = figures_of(diagnosis, path, read=read), is_run_folder(Path(path))
    # Nothing is written next to a trace: its folder may not be the user's to write to.
    name = re.sub(r"(?:\.(?:gz|json|trace|pt|sqlite|nsys-rep|ncu-rep|csv))+$", "", Path(path).name) or "report"
    write_page(data, page or (Path(path) / "report.html" if folder else f"{name}.html"), show=show)
    if folder:
        _try_to_write(Path(path) / FILE, lambda: write_figures(path, data))


def _try_to_write(file: Path, write: Callable[[], object]) -> None:
    """Write a file that the user did not ask for: where that fails, report it and go on."""
    try:
        write()
    except OSError as error:
        print_message(f"{file} was not written: {error.strerror}")


def _check_gate(word: str) -> None:
    known = [rule.id for rule in find_rules()]
    if word not in SEVERITIES and word not in known:
        raise UsageError(
            f"--fail-on takes a severity ({', '.join(SEVERITIES)}) or a rule ({', '.join(known)}), got {word!r}"
        )


def _has_finding(diagnosis: Diagnosis, word: str) -> bool:
    """Whether there is a finding of this rule, or at or above this severity."""
    if word in SEVERITIES:
        minimum = SEVERITIES.index(word)
        return any(SEVERITIES.index(finding.severity) >= minimum for finding in diagnosis.findings)
    return any(finding.rule == word for finding in diagnosis.findings)
