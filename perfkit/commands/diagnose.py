"""``perfkit diagnose``: the diagnosis of a run folder or a trace file."""

from __future__ import annotations

import re
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfkit import diagnosis as diagnoses
from perfkit.commands._progress import reading_bar
from perfkit.diagnosis import Diagnosis
from perfkit.errors import UsageError
from perfkit.findings import SEVERITIES
from perfkit.reports.console import stderr_console, stdout_console
from perfkit.reports.json import write_json
from perfkit.reports.markdown import write_markdown
from perfkit.reports.terminal import print_diagnosis
from perfkit.rules._engine import find_rules
from perfkit.run.atomic import write_atomically
from perfkit.run.reading import is_run_folder

if TYPE_CHECKING:
    from perfkit.trace.cached_reader import ReadTrace


def diagnose(
    path: str = typer.Argument(
        ...,
        help="Diagnose this run folder, Kineto trace (.json, .json.gz), nsys report (.nsys-rep, .sqlite), or ncu "
        "report (.ncu-rep, or .csv from ncu --csv).",
    ),
    every: bool = typer.Option(
        False, "--all", help="Show all findings, their evidence, and the rules that could not be asked. Default: five."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the diagnosis as JSON."),
    as_markdown: bool = typer.Option(False, "--markdown", help="Print the diagnosis as markdown."),
    out: str | None = typer.Option(None, "--out", help="Also write the diagnosis as JSON to this file."),
    fail_on: list[str] = typer.Option(
        [],
        "--fail-on",
        metavar="RULE|SEVERITY",
        help="Exit with 1 if this rule, or any rule at or above this severity, has a finding. May be repeated.",
    ),
    as_html: bool = typer.Option(
        False, "--html", help="Also write an HTML page to FILE. Default: report.html in the run folder."
    ),
    open_page: bool = typer.Option(False, "--open", help="Write the page and open it in the browser."),
    page: str | None = typer.Argument(None, metavar="[FILE]", help="Write the page of --html to this file."),
    early: bool = typer.Option(False, "--early", hidden=True),
) -> int:
    """Report what dominates a training step, on which lines, what to change and what that saves."""
    # Loads numpy, which `perfkit run`, for which this file is imported too, must leave to the program.
    from perfkit.measures.gathering import measure
    from perfkit.trace import read_trace
    from perfkit.trace.cached_reader import CachedTraceReader

    if as_json and as_markdown:
        raise UsageError("choose one of --json and --markdown")
    if page is not None and not (as_html or open_page):
        raise UsageError(f"diagnose takes one path; add --html to write a page to {page}")
    for word in fail_on:
        _check_gate(word)
    # A page needs the trace a second time.
    read = CachedTraceReader() if as_html or open_page else read_trace
    with reading_bar(f"reading {Path(path).name}") as report:
        found = measure(path, progress=report, read=read)
    diagnosis = diagnoses.diagnose(found)
    _write_json_files(diagnosis, Path(path), out, keep=not early)
    if as_json:
        write_json(diagnosis, sys.stdout)
    elif as_markdown:
        write_markdown(diagnosis, sys.stdout)
    else:
        console = stdout_console()
        if early:
            console.print("perfkit: first verdict, while training continues", style="dim")
        print_diagnosis(diagnosis, console, all=every)
    if as_html or open_page:
        _write_page(diagnosis, path, page, show=open_page, read=read)
    return 1 if any(_has_finding(diagnosis, word) for word in fail_on) else 0


def _write_json_files(diagnosis: Diagnosis, path: Path, out: str | None, *, keep: bool) -> None:
    """Write the file of --out, and with ``keep`` diagnosis.json into a run folder."""
    text = diagnosis.to_json().encode()
    if out is not None:
        try:
            write_atomically(Path(out), text)
        except OSError as error:
            raise UsageError(f"the diagnosis cannot be written to {out}: {error.strerror}") from error
    if keep and is_run_folder(path):
        _try_to_write(path / "diagnosis.json", lambda: write_atomically(path / "diagnosis.json", text))


def _write_page(diagnosis: Diagnosis, path: str, page: str | None, *, show: bool, read: ReadTrace) -> None:
    """Write the page, and into a run folder the figures that other pages draw."""
    # Figures load numpy, see above.
    from perfkit.reports.figures import FILE, figures_of, write_figures
    from perfkit.reports.html import write_html

    data, folder = figures_of(diagnosis, path, read=read), is_run_folder(Path(path))
    # Nothing is written next to a trace: its folder may not be the user's to write to.
    name = re.sub(r"(?:\.(?:gz|json|trace|pt|sqlite|nsys-rep|ncu-rep|csv))+$", "", Path(path).name) or "report"
    try:
        file = write_html(data, page or (Path(path) / "report.html" if folder else f"{name}.html"))
    except OSError as error:
        raise UsageError(f"the page cannot be written: {error}; choose another path with --html FILE") from error
    if folder:
        _try_to_write(Path(path) / FILE, lambda: write_figures(path, data))
    stderr_console().print(f"perfkit: page {file}", markup=False, highlight=False)
    if show:
        webbrowser.open(file.resolve().as_uri())


def _try_to_write(file: Path, write: Callable[[], object]) -> None:
    """Write a file that the user did not ask for: where that fails, report it and go on."""
    try:
        write()
    except OSError as error:
        stderr_console().print(f"perfkit: {file} was not written: {error.strerror}", markup=False, highlight=False)


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
