"""A trace as numpy columns: `read_trace` reads any file that torch.profiler or Nsight Systems writes."""

from __future__ import annotations

import os
from pathlib import Path

from perfkit._regular_file import open_regular
from perfkit.errors import TraceError
from perfkit.trace.columns import DeviceProperties, Field, Kind, Metadata, ProfilerSteps, Trace, Track
from perfkit.trace.file_text import Progress
from perfkit.trace.kineto import read_kineto
from perfkit.trace.nsight.report_export import NSYS

__all__ = ["DeviceProperties", "Field", "Kind", "Metadata", "ProfilerSteps", "Trace", "Track", "read_trace"]

SQLITE = b"SQLite format 3\0"
HDF5 = b"\x89HDF\r\n\x1a\n"
#: How nsys begins its JSON: with all strings of the report, of which the first is always this one.
_NSYS_JSON = b'{"data":["[Unknown]"'


def read_trace(
    path: str | os.PathLike[str], progress: Progress | None = None, *, processes: int | None = None
) -> Trace:
    """Read a trace of any format, which is detected from the content of the file, not from its name.

    Args:
        path: A Kineto trace (JSON, also gzip), an nsys SQLite export, or an nsys report (``.nsys-rep``, which an
            installed nsys exports into the user's cache folder).
        progress: Called with (bytes done, bytes in total) while reading.
        processes: Number of processes that read a Kineto trace; by default one for each 64 MB of text, up to the
            number of cores, at most 8. With 1, and where processes cannot be started, this process reads alone.

    Raises:
        TraceError: the file does not exist, or is not a trace. Damage is not an error: the undamaged part is read, and
            `Trace.lost` says what is missing.
    """
    file = Path(path)
    if file.is_dir():
        raise TraceError(f"{file} is a folder, not a trace; give the trace file in it")
    try:
        with open_regular(file) as opened:
            start = opened.read(len(SQLITE))
    except FileNotFoundError:
        raise TraceError(f"{file} does not exist; give the path of a trace file") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not start:
        raise TraceError(f"{file} is empty; the program that wrote it was probably stopped; record it again")
    if start == SQLITE:
        from perfkit.trace.nsight.nsys import read_nsys  # some builds of Python lack sqlite3; Kineto does not need it

        return read_nsys(file, progress)
    if file.suffix in NSYS.endings:
        from perfkit.trace.nsight.nsys import read_nsys_report  # as above

        return read_nsys_report(file, progress)
    if start.startswith(HDF5) or _is_nsys_json(file):
        by_hand = "nsys export --type sqlite -o report.sqlite report.nsys-rep"
        kind = "an HDF5 file, as nsys exports" if start.startswith(HDF5) else "a JSON export of nsys"
        raise TraceError(f"{file} is {kind}, which is not read; export its report to SQLite: {by_hand}")
    if start.startswith(b"PK\x03\x04"):
        raise TraceError(f"{file} is a zip archive, not a trace; unpack it and give the trace file in it")
    return read_kineto(file, progress, processes=processes)


def _is_nsys_json(file: Path) -> bool:
    with open_regular(file) as opened:
        return opened.read(len(_NSYS_JSON)) == _NSYS_JSON
