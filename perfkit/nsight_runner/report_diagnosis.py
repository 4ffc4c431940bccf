"""The diagnosis of a report of nsys or ncu, and the reason if the report is empty."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import msgspec

from perfkit._nvtx_names import WINDOW
from perfkit._stderr import print_message
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import RunError, TraceError
from perfkit.measures.gathering import measure
from perfkit.measures.results.measurements import TraceFacts
from perfkit.nsight_runner.nsys_window import cut_to_last_window
from perfkit.run.atomic import write_atomically
from perfkit.run.file_names import nsys_name
from perfkit.run.reading import is_run_folder
from perfkit.run.records import Rank
from perfkit.trace.file_text import Progress
from perfkit.trace.nsight.report_export import export_ncu_report, export_nsys_report


def diagnose_nsys(
    report: Path, folder: Path, *, inside: bool, ranged: bool, progress: Progress | None = None
) -> Diagnosis:
    """Diagnose a report of nsys, cut to its last window, together with the steps of the run in ``folder``.

    Args:
        report: ``.nsys-rep``.
        folder: The folder of the run, if one was recorded; the output goes there.
        inside: Whether perfkit recorded in the program, so that a window is expected.
        ranged: Whether only a capture range was recorded.
        progress: Called with (done, total) while the report is read.

    Raises:
        TraceError: the report cannot be read, or is empty; the text says why, if that is known.
    """
    print_message(f"exporting {report} to SQLite")
    export = export_nsys_report(report)
    target = report.with_suffix(".window.sqlite")
    window = cut_to_last_window(export, target)
    source = export
    if window is not None:
        rank = re.search(r"-rank-(\d+)$", report.stem)  # absent for a program of one process
        rank_folder = folder / f"rank-{int(rank[1]) if rank else 0}"
        source = target
        if rank_folder.is_dir():
            # A window of the run like any other, so that later diagnoses of the run read it too.
            target = target.replace(rank_folder / nsys_name(window.number))
            source = folder
        window_name = "the window"
        if window.windows > 1:
            window_name = f"window {window.number}, the last of {window.windows}"
        print_message(f"{target} is {window_name}, {(window.end_ns - window.start_ns) / 1e6:.1f} ms")

    def why() -> str:
        return why_empty(folder, inside=inside, ranged=ranged)

    try:
        measured = measure(source, progress=progress)
    except TraceError as error:
        raise TraceError(f"{report} has nothing that can be diagnosed: {error}; {why()}") from None
    trace = measured.get(TraceFacts)
    if trace is None or not trace.events:
        raise TraceError(f"{report} is empty: {why()}")
    if window is None:
        if inside:
            reason = why()
            measured.missing = (*measured.missing, f"the report has no range {WINDOW}: {reason}")
            print_message(f"{report} has no window, so all of it is diagnosed: {reason}")
        measured.source = str(report)
        measured.replace(msgspec.structs.replace(trace, path=str(report)))
    diagnosis = diagnose(measured)
    if source == folder:
        write_atomically(folder / "diagnosis.json", diagnosis.to_json().encode())
    return diagnosis


def diagnose_ncu(report: Path, progress: Progress | None = None) -> Diagnosis:
    """Diagnose a report of ncu, through its table of kernels, which is kept next to it as CSV.

    Raises:
        TraceError: ncu cannot read the report, or it has no kernels.
    """
    table = report.with_suffix(".csv")
    print_message(f"exporting {report} to {table}")
    # Next to the report, so that the table is moved and not copied; a failed export is removed with the folder.
    with tempfile.TemporaryDirectory(dir=report.parent) as work:
        export_ncu_report(report, Path(work)).replace(table)
    return diagnose(measure(table, progress=progress))


def why_empty(folder: Path, *, inside: bool, ranged: bool) -> str:
    """The reason why a tool recorded nothing, or no window, as far as it is known.

    Args:
        folder: The folder of perfkit's run, if there is one.
        inside: Whether perfkit recorded in the program.
        ranged: Whether only a capture range should be recorded.
    """
    if not inside and ranged:
        return (
            "perfkit was not inside the program, and nothing else opened the capture range (cudaProfilerStart, or the"
            " NVTX range): record the whole program, or name a Python script"
        )
    if not inside:
        return "its output above may say why; a program that ends at once leaves nothing"
    if not is_run_folder(folder):
        return "the program never imported torch, or ended before that, so perfkit recorded no run"
    try:
        rank = measure(folder).get(Rank)
    except (RunError, TraceError) as error:
        return str(error)
    if rank is not None and not rank.windows:
        steps = f"{rank.steps} steps" if rank.steps else "no step that perfkit detected"
        return f"the run had {steps} and no window was opened: open one earlier with --schedule wait,warmup,active"
    if ranged and rank is not None and not rank.devices:
        return "torch sees no CUDA device, so cudaProfilerStart was never called: use --capture-range nvtx or none"
    return "the window was opened, but the tool recorded nothing in it: its output above may say why"
