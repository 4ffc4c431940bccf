"""What is made of a run when it is over: diagnosis.json, the verdict on a console, and the data of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from perfkit._stderr import print_message
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import RunError
from perfkit.measures.gathering import measure
from perfkit.reports.console import stderr_console
from perfkit.reports.figures import figures_of, write_figures
from perfkit.reports.html import write_html
from perfkit.reports.terminal import print_diagnosis
from perfkit.run.atomic import write_atomically
from perfkit.trace import read_trace
from perfkit.trace.cached_reader import ReadTrace


def diagnose_run(folder: Path, console: Console | None, *, read: ReadTrace = read_trace) -> Diagnosis:
    """Diagnose the run, write diagnosis.json, and print the verdict; None: print nothing.

    Raises:
        RunError: the folder holds no run, or nothing that could be diagnosed.
    """
    diagnosis = diagnose(measure(folder, read=read))
    write_atomically(folder / "diagnosis.json", diagnosis.to_json().encode())
    if console is not None:
        print_diagnosis(diagnosis, console)
    return diagnosis


def diagnose_own_run(folder: Path, notes: Sequence[str], *, quiet: bool) -> Diagnosis | None:
    """`diagnose_run` in the process that recorded the run.

    None where the folder holds nothing that a verdict could be about: then ``notes`` are printed.
    """
    try:
        return diagnose_run(folder, None if quiet else stderr_console())
    except RunError:
        for note in notes:
            print_message(note)
        return None


def draw_run(diagnosis: Diagnosis, folder: Path, *, page: bool = False, read: ReadTrace = read_trace) -> Path | None:
    """Write the data of the pages, and with ``page`` the page itself, which is returned."""
    data = figures_of(diagnosis, folder, read=read)
    write_figures(folder, data)
    return write_html(data, folder / "report.html") if page else None
