"""A trace as numpy columns: `read_trace` takes any file that torch.profiler or Nsight Systems leaves."""

from __future__ import annotations

import os
from pathlib import Path

from perfkit.errors import TraceError
from perfkit.trace.columns import DeviceProperties, Field, Kind, Metadata, ProfilerSteps, Trace, Track
from perfkit.trace.file_text import Progress
from perfkit.trace.kineto import read_kineto

__all__ = ["DeviceProperties", "Field", "Kind", "Metadata", "ProfilerSteps", "Trace", "Track", "read_trace"]

SQLITE = b"SQLite format 3\0"
#: What Nsight Systems records itself: a closed format, which an installed nsys exports for us.
NSYS_OWN = (".nsys-rep", ".qdrep", ".qdstrm")


def read_trace(
    path: str | os.PathLike[str], progress: Progress | None = None, *, processes: int | None = None
) -> Trace:
    """Read a trace, whatever its format: what is in the file decides, not its name.

    Args:
        path: A Kineto trace (JSON, also gzip), an nsys SQLite export, or nsys' own report (``.nsys-rep``, which an
            installed nsys exports into the user's cache folder).
        progress: Called with (bytes done, bytes in all) while reading.
        processes: How many read a long Kineto trace; by default one for each 64 MB of text, up to the cores, 8 at
            most. With 1, and where processes cannot be started, this one reads alone.

    Raises:
        TraceError: there is no such file, or no trace in it. Damage is no error: it is read as far as it
            is sound, and `Trace.lost` says what is missing.
    """
    file = Path(path)
    if file.is_dir():
        raise TraceError(f"{file} is a folder, not a trace; give the trace file in it")
    try:
        with file.open("rb") as opened:
            start = opened.read(len(SQLITE))
    except FileNotFoundError:
        raise TraceError(f"{file} does not exist; give the path of a trace file") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read: {error}") from None
    if not start:
        raise TraceError(f"{file} is empty; the program that wrote it was probably stopped: record it again")
    if start == SQLITE:
        # Here, not above: some builds of Python lack sqlite3, and Kineto traces do not need it.
        from perfkit.trace.nsight.nsys import read_nsys

        return read_nsys(file, progress)
    if file.suffix in NSYS_OWN:
        from perfkit.trace.nsight.nsys import read_nsys_report

        return read_nsys_report(file, progress)
    if start.startswith(b"PK\x03\x04"):
        raise TraceError(f"{file} is a zip archive, not a trace; unpack it and give the trace file in it")
    return read_kineto(file, progress, processes=processes)
