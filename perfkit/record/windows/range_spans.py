"""The ranges recorder: in a window, each time a range ran, on which thread and how deep, beside the sums of the run.

The run's own recorder of ranges folds what threads write into sums and forgets it (`perfkit.ranges.recorder`). While a
window is open, what it reads is kept here as well, as it is; it becomes rows when the window is over, beside training.
"""

from __future__ import annotations

import inspect
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfkit.ranges import context
from perfkit.ranges import recorder as ranges_recorder
from perfkit.record.windows.trace_files import in_thread
from perfkit.record.windows.window_controller import Recorder
from perfkit.run.arrays import write_spans
from perfkit.run.file_names import spans_path
from perfkit.run.records import RangeSpan

#: Rows of a window. A viewer shows no more than some 10,000, and 50,000 need 1.6 MB in memory and 0.5 MB on disk.
MAX_ROWS = 50_000
#: A begin and an end are two values each (`perfkit.ranges.event_stream`).
_VALUES = 4
#: Numbers of ranges lie below, times above, as there.
_TIMES = 1 << 20


class _Thread:
    """What one thread wrote: ``opened`` are (number, begin) of the ranges open before."""

    def __init__(self, name: str, opened: list[tuple[int, int]]) -> None:
        self.name = name
        self.opened = opened
        self.values = array("q")
        self.lost = 0


class SpanLog:
    """Keeps what the recorder of ranges reads, up to `MAX_ROWS`."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []
        self._room = MAX_ROWS * _VALUES

    def thread(self, name: str, opened: list[tuple[int, int]]) -> Callable[[list[int]], None]:
        """What takes one thread's values."""
        thread = _Thread(name, opened)
        self._threads.append(thread)

        def take(values: list[int]) -> None:
            kept = values[: self._room]
            self._room -= len(kept)
            thread.values.extend(kept)
            thread.lost += len(values) - len(kept)

        return take

    def spans(self) -> tuple[list[RangeSpan], int]:
        """The rows in order of their begin, and how many ranges there were besides."""
        rows: list[RangeSpan] = []
        dropped = 0
        for thread in self._threads:
            dropped += -(-thread.lost // _VALUES)
            dropped += _read(thread, rows)
        return sorted(rows, key=lambda row: row.start_ns), dropped


def _read(thread: _Thread, rows: list[RangeSpan]) -> int:
    """Turn a thread's values into rows, as `event_stream.Stream` does into sums; return how many had no begin."""
    pending: list[int] = []
    opened = [(number, begin, depth) for depth, (number, begin) in enumerate(thread.opened)]
    unknown = 0

    def add(number: int, begin: int, end: int | None, depth: int) -> None:
        made = context.by_number(number)
        rows.append(
            RangeSpan(
                name=made.name,
                category=made.category or "",
                domain=made.domain,
                thread=thread.name,
                start_ns=begin,
                end_ns=end,
                depth=depth,
            )
        )

    for value in thread.values:
        if value < _TIMES:
            pending.append(value)
        elif not pending:
            unknown += 1  # its number was read before the window
        elif (number := pending.pop()) >= 0:
            opened.append((number, value, len(opened)))
        else:
            # Out of order too: of the open ones with this number the one that began last.
            index = next((i for i in reversed(range(len(opened))) if opened[i][0] == ~number), None)
            if index is None:
                unknown += 1
            else:
                _, begin, depth = opened.pop(index)
                add(~number, begin, value, depth)
    for number, begin, depth in opened:
        if not thread.lost:  # else it may have ended
            add(number, begin, None, depth)
    return unknown + (len(opened) if thread.lost else 0)


class _Tee:
    """Stands in for the stream of a thread: keeps the values, and hands them on."""

    def __init__(self, stream: Any, take: Callable[[list[int]], None]) -> None:
        self.stream = stream
        self._take = take

    def read(self, values: list[int]) -> None:
        self._take(values)
        self.stream.read(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class RangesRecorder(Recorder):
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
        self._recorder: Any = None
        self._log = SpanLog()
        self._dropped_before = 0
        self._writers: list[threading.Thread] = []

    def open(self, index: int, step: int) -> str | None:
        """Where no ranges are recorded in this run, say so."""
        return None if ranges_recorder.running() else "the recorder of ranges does not run, so there is nothing to keep"

    def activate(self, index: int) -> None:
        """Keep what is read from now on."""
        recorder: Any = ranges_recorder._active
        if recorder is None:
            raise RuntimeError("the recorder of ranges has stopped")
        log = self._log = SpanLog()
        new_stream = recorder._new_stream

        def kept(thread: str, stream: Any) -> _Tee:
            return _Tee(stream, log.thread(thread, [(number, begin) for number, begin, _ in stream.opened]))

        with recorder._lock:
            recorder._drain()
            self._recorder, self._dropped_before = recorder, recorder.dropped
            # Threads that write their first range inside the window are kept from the beginning.
            recorder._new_stream = lambda thread: kept(thread, new_stream(thread))
            for thread in recorder._threads:
                thread.stream = kept(inspect.getclosurevars(thread.stream._sums_of).nonlocals["thread"], thread.stream)

    def end(self, index: int, *, early: bool) -> None:
        """Keep no more, and write what was kept."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        with recorder._lock:
            recorder._drain()
            dropped = recorder.dropped - self._dropped_before
            del recorder._new_stream
            for thread in recorder._threads:
                thread.stream = thread.stream.stream
        log, self._log = self._log, SpanLog()
        writing = in_thread(lambda: self._write(index, log, dropped))
        self._writers = [writer for writer in self._writers if writer.is_alive()] + writing

    def _write(self, index: int, log: SpanLog, dropped_before: int) -> None:
        path = spans_path(self._file_of(index))
        try:
            rows, dropped = log.spans()
            dropped += dropped_before
            write_spans(path, rows, dropped)
        except Exception as error:  # noqa: BLE001 - a full disk; nothing of perfkit's may be raised in a thread
            self._trouble(f"writing {path.name}", error)
            return
        if dropped:
            self._note(f"window {index}: {len(rows):,} ranges are in {path.name}, {dropped:,} more were not kept")

    def wait(self) -> None:
        """Until all is written."""
        for writer in list(self._writers):
            writer.join()
