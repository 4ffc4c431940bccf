"""Traces that several ask for, read once."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from perfkit.trace import read_trace
from perfkit.trace.columns import Trace
from perfkit.trace.file_text import Progress


class ReadTrace(Protocol):
    """Reads a trace as `perfkit.trace.read_trace` does."""

    def __call__(self, path: Path, progress: Progress | None = None) -> Trace:
        """The trace in a file."""


class CachedTraceReader:
    """Reads each trace once and holds it: what is measured first and drawn then is read once for both.

    Columns take 66 bytes per event, so let go of the reader when all have what they want.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, int], Trace] = {}

    def __call__(self, path: Path, progress: Progress | None = None) -> Trace:
        """The trace in a file, read again where the file has changed.

        Raises:
            TraceError: as `perfkit.trace.read_trace`.
        """
        try:
            status = path.stat()
        except OSError:
            return read_trace(path, progress)  # which says what is wrong with it
        key = path.resolve(), status.st_size, status.st_mtime_ns
        if key not in self._known:
            self._known[key] = read_trace(path, progress)
        return self._known[key]
