"""Reads each trace once, however many callers need it."""

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
    """Reads each trace once and keeps it, so that measuring and then drawing it reads it once.

    Columns take 66 bytes per event, so drop the reader when it is no longer needed.
    """

    def __init__(self) -> None:
        self._traces: dict[tuple[Path, int, int], Trace] = {}

    @property
    def events(self) -> int:
        """How many events the traces that it keeps have."""
        return sum(map(len, self._traces.values()))

    def __call__(self, path: Path, progress: Progress | None = None) -> Trace:
        """The trace in a file, read again if the file has changed.

        Raises:
            TraceError: as `perfkit.trace.read_trace`.
        """
        try:
            status = path.stat()
        except OSError:
            return read_trace(path, progress)  # which reports what is wrong
        key = path.resolve(), status.st_size, status.st_mtime_ns
        if key not in self._traces:
            self._traces[key] = read_trace(path, progress)
        return self._traces[key]
