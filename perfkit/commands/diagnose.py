"""``perfkit diagnose``: the answer for a run folder or a trace file."""

from __future__ import annotations

import re
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfkit import diagnosis as diagnoses
from perfkit.commands.reading import reading_bar
from perfkit.diagnosis import Diagnosis
from perfkit.errors import UsageError
from perfkit.findings import SEVERITIES
from perfkit.reports.console import stderr_console, stdout_console
from perfkit.reports.json import write_json
from perfkit.reports.terminal import print_diagnosis
from perfkit.rules import RULES
from perfkit.run.atomic import write_atomically
from perfkit.run.reading import is_run_folder

if TYPE_CHECKING:
    from perfkit.trace.cached_reader import ReadTrace


def diagnose(
    path: str = typer.Argument(
        ...,
        help="A run folder, a Kineto trace (.json, .json.gz), what nsys left (.nsys-rep, .sqlite), or what ncu left "
        "(.ncu-rep, or .csv from ncu --csv).",
    ),
    every: bool = typer.Option(False, "--all", help="Show every finding, not only the five that cost most."),
    as_json: bool = typer.Option(False, "--json", help="Print the diagnosis as JSON."),
    as_markdown: bool = typer.Option(False, "--markdown", help="Print the diagnosis as markdown."),
    out: str | None = typer.Option(None, "--out", help="Also write the diagnosis, as JSON, to this file."),
    fail_on: list[str] = typer.Option(
        [],
        "--fail-on",
        help="Exit 1 if this rule, or a finding of this severity or graver, was found. May be repeated.",
    ),
    as_html: bool = typer.Option(
        False, "--html", help="Also write a page: FILE, else report.html in the run folder, or here for a trace."
    ),
    open_page: bool = typer.Option(False, "--open", help="Write the page and open it in the browser."),
    page: str | None = typer.Argument(None, metavar="[FILE]", help="With --html: the page to write."),
    early: bool = typer.Option(False, "--early", hidden=True),
) -> int:
    """Say what dominates a training step, which lines, what to change and what it gains."""
    # Loads numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.measures.gathering import measure
    from perfkit.trace import read_trace
    from perfkit.trace.cached_reader import CachedTraceReader

    if as_json and as_markdown:
        raise UsageError("--json and --markdown are two formats: choose one")
    if page is not None and not (as_html or open_page):
        raise UsageError(f"one path is diagnosed at a time; to write a page to {page} add --html")
    for word in fail_on:
        _check_gate(word)
    # A page draws from the trace once more; else it need not be kept.
    read = CachedTraceReader() if as_html or open_page else read_trace
    with reading_bar(f"reading {Path(path).name}") as report:
        measured = measure(path, progress=report, read=read)
    answer = diagnoses.diagnose(measured)
    folder = Path(path)
    text = answer.to_json().encode()
    if out is not None:
        try:
            write_atomically(Path(out), text)
        except OSError as error:
            raise UsageError(f"the diagnosis cannot be written to {out}: {error.strerror}") from error
    if is_run_folder(folder) and not early:
        try:
            write_atomically(folder / "diagnosis.json", text)
        except OSError as error:
            stderr_console().print(f"perfkit: {folder}/diagnosis.json was not written: {error.strerror}")
    if as_json:
        write_json(answer, sys.stdout)
    elif as_markdown:
        from perfkit.reports.markdown import write_markdown

        write_markdown(answer, sys.stdout)
    else:
        console = stdout_console()
        if early:
            console.print("perfkit: first verdict; training goes on", style="dim")
        print_diagnosis(answer, console, all=every)
    if as_html or open_page:
        _write_page(answer, path, page, show=open_page, read=read)
    return 1 if any(_fires(word, answer) for word in fail_on) else 0


def _write_page(answer: Diagnosis, path: str, page: str | None, *, show: bool, read: ReadTrace) -> None:
    """Write the page, and into a run folder the figures that other pages draw."""
    from perfkit.reports.figures import figures_of, write_figures
    from perfkit.reports.html import write_html

    data = figures_of(answer, path, read=read)
    try:
        if is_run_folder(Path(path)):
            file = write_html(data, page or Path(path) / "report.html")
        else:
            # Nothing is written beside a trace: it may lie in a place that is not ours.
            name = re.sub(r"(?:\.(?:gz|json|trace|pt|sqlite|nsys-rep|ncu-rep|csv))+$", "", Path(path).name) or "report"
            file = write_html(data, page or f"{name}.html")
    except OSError as error:
        raise UsageError(f"the page cannot be written: {error}; name another place: --html FILE") from error
    if is_run_folder(Path(path)):
        try:
            write_figures(path, data)
        except OSError as error:
            stderr_console().print(f"perfkit: {path}/figures.json was not written: {error.strerror}")
    stderr_console().print(f"perfkit: page {file}", markup=False, highlight=False)
    if show:
        webbrowser.open(file.resolve().as_uri())


def _check_gate(word: str) -> None:
    known = [rule.ID for rule in RULES]
    if word not in SEVERITIES and word not in known:
        raise UsageError(
            f"--fail-on takes a severity ({', '.join(SEVERITIES)}) or a rule ({', '.join(known)}), got {word!r}"
        )


def _fires(word: str, answer: Diagnosis) -> bool:
    if word in SEVERITIES:
        least = SEVERITIES.index(word)
        return any(SEVERITIES.index(finding.severity) >= least for finding in answer.findings)
    return any(finding.rule == word for finding in answer.findings)
