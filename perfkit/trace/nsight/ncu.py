"""Reports of Nsight Compute: its CSV exports, and its own format through an installed ncu."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from perfkit.errors import TraceError
from perfkit.trace.file_text import FileText, Progress
from perfkit.trace.nsight._ncu_tables import Launch, LaunchRule, ReportLines, ReportTables, decoder_for
from perfkit.trace.nsight.report_export import NCU, export_ncu_report

__all__ = ["Launch", "LaunchRule", "NcuReport", "is_ncu", "read_ncu"]

#: Bytes of a file in which its format is searched: a program mostly prints less before the table.
_START = 256 << 10


class NcuReport(msgspec.Struct, frozen=True, kw_only=True):
    """Launches in the order of the file; ``lost`` has one sentence for each thing that could not be read."""

    path: Path
    launches: tuple[Launch, ...]
    lost: tuple[str, ...]


def is_ncu(path: Path) -> bool:
    """Whether a file is a report of Nsight Compute, by its content; False for a file that cannot be read."""
    if path.suffix in NCU.endings:
        return True
    try:
        start = b""
        for block in FileText(path, block=_START):
            start += block
            if len(start) >= _START:
                break
    except (OSError, ValueError, TraceError):
        return False
    text = decoder_for(start).decode(start[:_START])
    if text.lstrip()[:1] in ("{", "["):
        return False  # JSON: a Kineto trace
    # Other tables count too: reading one raises an error that says what it is.
    if path.name.lower().endswith((".csv", ".csv.gz")):
        return True
    return "\0" not in text and ("Kernel Name" in text or "==PROF==" in text)


def read_ncu(path: str | os.PathLike[str], progress: Progress | None = None) -> NcuReport:
    """Read a report of Nsight Compute: a CSV export (also gzip), or its own format, which an installed ncu exports.

    Raises:
        TraceError: the file does not exist, or has no launch. Damage is not an error: ``lost`` says what is missing.
    """
    file = Path(path)
    if file.suffix in NCU.endings:
        with tempfile.TemporaryDirectory(prefix="perfkit-ncu-") as folder:
            return _read_csv(export_ncu_report(file, Path(folder)), file, progress)
    return _read_csv(file, file, progress)


def _read_csv(file: Path, report: Path, progress: Progress | None) -> NcuReport:
    """Read the CSV export ``file``; errors name ``report``."""
    try:
        lines = ReportLines(FileText(file, progress))
        tables = ReportTables(lines)
        tables.read()
    except FileNotFoundError:
        raise TraceError(f"{report} does not exist; give the path of a CSV that ncu exported") from None
    except OSError as error:
        raise TraceError(f"{report} cannot be read: {error}") from None
    launches = tables.launches()
    if not launches:
        raise TraceError(f"{report} {_why_empty(lines, tables)}")
    return NcuReport(path=report, launches=launches, lost=tuple(tables.lost()))


def _why_empty(lines: ReportLines, tables: ReportTables) -> str:
    if lines.errors and not tables.found:
        return f"has no launch; ncu reported: {' '.join(lines.errors)}"
    if tables.found:
        damage = "".join(f"; {sentence}" for sentence in tables.lost())
        return f"has a table of Nsight Compute without a launch: no kernel was profiled{damage}"
    if lines.empty:
        return "is empty; the program that wrote it was probably stopped; record it again"
    if lines.is_nsys_stats:
        return "is a table of nsys stats, with only names and times; give the .nsys-rep or .sqlite it was made from"
    return (
        'has no table of Nsight Compute (a header with "Kernel Name"); make one with: '
        "ncu --import REPORT.ncu-rep --page raw --csv > kernels.csv"
    )
