"""The recorder "ranges": each time a range ran in a window, in which thread and how deep, next to the sums of the run.

The run's own recorder of ranges adds up what threads write (`perfkit.ranges.recorder`). While a window is open it also
keeps the events; they become rows in a thread of their own once the window is over.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfkit.ranges import recorder_listener
from perfkit.ranges.event_log import EventLog
from perfkit.ranges.recorder import RangeRecorder
from perfkit.record.windows.trace_files import BackgroundWriter
from perfkit.record.windows.window_controller import WindowRecorder
from perfkit.run.arrays import write_spans
from perfkit.run.file_names import spans_path

#: Maximum number of rows of a window. A viewer shows at most some 10,000, and 50,000 need 1.6 MB in memory and 0.5 MB
#: on disk.
MAX_ROWS = 50_000


class RangesRecorder(WindowRecorder):
    """Writes ``ranges-<window>.npz``: `perfkit.run.reading.RankFolder.spans` reads it."""

    name = "ranges"

    def __init__(
        self,
        file_of: Callable[[int], Path],
        trouble: Callable[[str, BaseException | str], None],
        note: Callable[[str], None],
    ) -> None:
        self._file_of = file_of
        self._trouble = trouble
        self._note = note
        self._recorder: RangeRecorder | None = None
        self._writer = BackgroundWriter()
        self._log: EventLog | None = None

    def open(self, index: int, step: int) -> str | None:
        """Refuse the window where no ranges are recorded in this run."""
        if recorder_listener.LISTENER.recorder is None:
            return "the recorder of ranges does not run, so there is nothing to keep"
        return None

    def activate(self, index: int) -> None:
        """Keep events from now on."""
        recorder = recorder_listener.LISTENER.recorder
        if recorder is None:
            raise RuntimeError("the recorder of ranges has stopped")
        recorder.start_log(MAX_ROWS)
        self._recorder = recorder

    def end(self, index: int, *, early: bool) -> None:
        """Keep no more events."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            self._log = recorder.stop_log()

    def write(self, index: int) -> None:
        """Write the events that were kept."""
        log, self._log = self._log, None
        if log is not None:
            self._writer.start(lambda: self._write(index, log))

    def discard(self, index: int) -> None:
        """Drop the window that has just ended, or remove the file of an earlier one."""
        log, self._log = self._log, None
        if log is None:
            spans_path(self._file_of(index)).unlink(missing_ok=True)

    def _write(self, index: int, log: EventLog) -> None:
        path = spans_path(self._file_of(index))
        try:
            rows, dropped = log.spans()
            write_spans(path, rows, dropped)
        except Exception as error:  # noqa: BLE001 - a full disk, say; a thread of perfkit must not raise
            self._trouble(f"writing {path.name}", error)
            return
        if dropped:
            self._note(f"window {index}: {len(rows):,} ranges are in {path.name}, {dropped:,} more were not kept")

    @property
    def writing_ns(self) -> int:
        """Wall time of the thread so far."""
        return self._writer.spent_ns

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is written."""
        return self._writer.wait(timeout_s)

    def size(self, index: int) -> int:
        """Bytes of the window's file."""
        path = spans_path(self._file_of(index))
        return path.stat().st_size if path.is_file() else 0
