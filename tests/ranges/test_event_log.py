"""The log of raw events: spans as they nested, what does not fit counted, and nothing before or after it."""

from __future__ import annotations

import pytest

import perfkit
from perfkit.ranges.event_log import EventLog
from perfkit.ranges.event_stream import RangeSums, SumStream
from perfkit.ranges.recorder import RangeRecorder
from perfkit.run.records import RangeSpan

T = 1 << 30


def stream_after(values: list[int]) -> SumStream:
    """The stream of a thread that has written these values before the log begins."""
    stream = SumStream(lambda number: RangeSums())
    stream.read(values)
    return stream


def test_ranges_that_end_out_of_order_and_ends_without_a_begin() -> None:
    log = EventLog(max_spans=100)
    stream = stream_after([0, T])
    log.keep("t", stream, [0, T + 1, ~0, T + 2, ~0, T + 3])
    log.keep("t", stream, [~0, T + 4])
    rows, dropped = log.spans()

    assert [(row.start_ns - T, row.end_ns and row.end_ns - T, row.depth) for row in rows] == [(0, 3, 0), (1, 2, 1)]
    assert dropped == 1
    assert all(isinstance(row, RangeSpan) for row in rows)


def test_the_depth_of_a_range_is_that_of_its_begin_also_where_ends_are_out_of_order() -> None:
    log = EventLog(max_spans=100)
    log.keep("t", stream_after([]), [0, T, 0, T + 1, 0, T + 2, ~0, T + 3, ~0, T + 4, 0, T + 5])
    rows, _ = log.spans()

    assert [(row.start_ns - T, row.depth) for row in rows] == [(0, 0), (1, 1), (2, 2), (5, 1)]
    assert [row.end_ns is None for row in rows] == [True, False, False, True]


def test_a_begin_that_is_cut_by_the_start_of_the_log_keeps_its_number() -> None:
    log = EventLog(max_spans=100)
    log.keep("t", stream_after([0]), [T, ~0, T + 1])
    rows, dropped = log.spans()

    assert [(row.start_ns - T, row.end_ns and row.end_ns - T) for row in rows] == [(0, 1)]
    assert dropped == 0


def test_the_recorder_logs_only_what_runs_between_start_and_stop(recorder: RangeRecorder) -> None:
    with perfkit.range("open before"):
        with perfkit.range("before"):
            pass
        recorder.start_log(max_spans=100)
        with perfkit.range("within"):
            pass
        log = recorder.stop_log()
        with perfkit.range("after"):
            pass
    rows, dropped = log.spans()

    assert [(row.name, row.depth, row.end_ns is None) for row in rows] == [
        ("open before", 0, True),
        ("within", 1, False),
    ]
    assert dropped == 0
    assert {row.name for row in recorder.rows()} == {"open before", "before", "within", "after"}


def test_a_log_that_was_not_started_cannot_be_stopped(recorder: RangeRecorder) -> None:
    with pytest.raises(perfkit.UsageError, match="without a start_log"):
        recorder.stop_log()
