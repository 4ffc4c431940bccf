"""The diagnosis of what a tool recorded; and where it recorded nothing, why."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from perfkit._stderr import print_message
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import RunError, TraceError
from perfkit.measures.gathering import measure
from perfkit.measures.results.measured import Measured
from perfkit.nsight_runner.nsys_window import cut_to_window
from perfkit.record.windows.cuda_profiler import RANGE
from perfkit.run.atomic import write_atomically
from perfkit.run.file_names import nsys_name
from perfkit.run.reading import is_run_folder
from perfkit.trace.nsight.ncu_export import export_report as export_report_of_ncu
from perfkit.trace.nsight.report_export import export_report

Progress = Callable[[int, int], None]


def diagnose_nsys(
    report: Path, folder: Path, *, inside: bool, ranged: bool, progress: Progress | None = None
) -> Diagnosis:
    """The diagnosis of a report of nsys, cut to its last window, together with the steps of the run in ``folder``.

    Args:
        report: ``.nsys-rep``.
        folder: Where the run was recorded, if one was; what is written goes there.
        inside: Whether perfkit recorded in the program, so that a window is expected.
        ranged: Whether only a capture range was recorded.
        progress: Called with (done, in all) while the report is read.

    Raises:
        TraceError: the report cannot be read, or is empty; the text says why as far as that can be told.
    """
    print_message(f"exporting {report} to SQLite")
    export = export_report(report)
    target = report.with_suffix(".window.sqlite")
    window = cut_to_window(export, target)
    source = report
    if window is not None:
        home = folder / f"rank-{_rank_of(report)}"
        if home.is_dir():
            # A window of the run like any other: read with the run, now and by whoever diagnoses it again.
            target = target.replace(home / nsys_name(window.number))
        source = folder if home.is_dir() else target
        print_message(
            f"{target} is {_which(window.number, window.of)}, {(window.end_ns - window.start_ns) / 1e6:.1f} ms"
        )
    try:
        measured = measure(source if window is not None else export, progress=progress)
    except TraceError as error:
        raise TraceError(
            f"{report} holds nothing that can be diagnosed: {error}; {why_empty(folder, inside=inside, ranged=ranged)}"
        ) from None
    trace = measured.trace
    if trace is None or not trace.events:
        raise TraceError(f"{report} is empty: {why_empty(folder, inside=inside, ranged=ranged)}")
    if inside and window is None:
        measured = _with_missing(
            measured, f"the report has no range {RANGE}: {why_empty(folder, inside=inside, ranged=ranged)}"
        )
        print_message(
            f"no window is in {report}, so all of it is diagnosed: {why_empty(folder, inside=inside, ranged=ranged)}"
        )
    if window is None:
        measured = msgspec.structs.replace(
            measured, source=str(report), trace=msgspec.structs.replace(trace, path=str(report))
        )
    answer = diagnose(measured)
    if source == folder:
        write_atomically(folder / "diagnosis.json", answer.to_json().encode())
    return answer


def diagnose_ncu(report: Path, progress: Progress | None = None) -> Diagnosis:
    """The diagnosis of a report of ncu, through its table of kernels, which stays beside it as CSV.

    Raises:
        TraceError: ncu cannot read it, or it holds no kernels.
    """
    table = report.with_suffix(".csv")
    print_message(f"exporting {report} to {table}")
    # Beside it, so that the table is moved and not copied; what a failed export has begun goes with the folder.
    with tempfile.TemporaryDirectory(dir=report.parent) as work:
        export_report_of_ncu(report, Path(work)).replace(table)
    return diagnose(measure(table, progress=progress))


def why_empty(folder: Path, *, inside: bool, ranged: bool) -> str:
    """What is known of why a tool recorded nothing, or no window.

    Args:
        folder: Where perfkit's run would be.
        inside: Whether perfkit recorded in the program.
        ranged: Whether only a capture range was to be recorded.
    """
    if not inside and ranged:
        return (
            "perfkit was not inside the program, and nothing else opened the capture range (cudaProfilerStart, or the"
            " NVTX range): record the whole program, or name a Python script"
        )
    if not inside:
        return "what it printed above may say why; a program that ends at once leaves nothing"
    if not is_run_folder(folder):
        return "the program never imported torch, or ended before it did, so that perfkit recorded no run"
    try:
        rank = measure(folder).rank
    except (RunError, TraceError) as error:
        return str(error)
    if rank is not None and not rank.windows:
        steps = f"{rank.steps} steps" if rank.steps else "no step that perfkit saw"
        return (
            f"the run had {steps} and no window was opened: give it an earlier one with --schedule wait,warmup,active"
        )
    if ranged and rank is not None and not rank.devices:
        return "torch sees no CUDA device, so cudaProfilerStart was never called: use --capture-range nvtx or none"
    return "the window was opened, but the tool recorded nothing in it: what it printed above may say why"


def _which(number: int, of: int) -> str:
    return "the window" if of == 1 else f"window {number}, the last of {of}"


def _with_missing(measured: Measured, sentence: str) -> Measured:
    return msgspec.structs.replace(measured, missing=(*measured.missing, sentence))


def _rank_of(report: Path) -> int:
    """Whose report it is; of a program of one process rank 0's."""
    named = re.search(r"-rank-(\d+)$", report.stem)
    return int(named[1]) if named else 0
