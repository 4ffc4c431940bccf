"""Bounds: names, threads, ranges that never end, a second recorder, a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

import perfkit
from perfkit.ranges import start_recorder
from perfkit.ranges.recorder import RangeRecorder
from perfkit.run.records import RangeRow

Row = Callable[[RangeRecorder, str], RangeRow]


def test_names_beyond_the_limit_share_a_row_and_are_reported_once(run_python: Callable[..., object]) -> None:
    done = run_python(
        """
        import perfkit
        from perfkit.ranges import start_recorder
        recorder = start_recorder()
        @perfkit.range("beyond as decorator " * 3)
        def early(): pass
        for i in range(5000):
            with perfkit.range(f"step {i}"):
                pass
        perfkit.range("late")(early)()
        recorder.stop()
        rows = {row.name: row.count for row in recorder.rows()}
        assert len(rows) == 4097
        assert rows["(more than 4096 names)"] == 5000 - 4095 + 1
        assert recorder.dropped == 0
        """
    )
    assert done.stderr.count("more than 4096 different ranges") == 1  # type: ignore[attr-defined]


def test_only_one_recorder_runs_at_a_time(recorder: RangeRecorder) -> None:
    with pytest.raises(perfkit.UsageError, match="only one recorder"):
        start_recorder()
    recorder.stop()
    recorder.stop()
    start_recorder().stop()


def test_a_recorder_starts_empty_and_keeps_its_rows_after_it_has_stopped(row: Row) -> None:
    for count in (1, 2):
        recorder = start_recorder()
        for _ in range(count):
            with perfkit.range("again"):
                pass
        recorder.stop()
        with perfkit.range("again"):
            pass
        assert row(recorder, "again").count == count


def test_a_range_that_spans_drains_is_counted_whole(recorder: RangeRecorder, row: Row) -> None:
    with perfkit.range("spanning"):
        recorder.drain()
        with perfkit.range("within"):
            recorder.drain()
    spanning, within = row(recorder, "spanning"), row(recorder, "within")

    assert (spanning.count, recorder.dropped) == (1, 0)
    assert spanning.self_ns == spanning.total_ns - within.total_ns


def test_ends_without_a_begin_are_dropped_and_counted(recorder: RangeRecorder) -> None:
    made = perfkit.range("unmatched")
    made.__exit__(None, None, None)

    assert recorder.rows() == ()
    assert recorder.dropped == 1


def test_ranges_left_open_by_a_thread_that_ended_are_dropped_and_counted(recorder: RangeRecorder) -> None:
    thread = threading.Thread(target=perfkit.range("left open").__enter__)
    thread.start()
    thread.join()

    assert recorder.rows() == ()
    recorder.drain()
    assert recorder.dropped == 1


def test_begins_that_never_end_are_bounded(recorder: RangeRecorder) -> None:
    made = perfkit.range("begun")
    for _ in range(10_050):
        made.__enter__()
    recorder.drain()
    assert recorder.dropped == 50
    for _ in range(10_000):
        made.__exit__(None, None, None)
    assert sum(row.count for row in recorder.rows()) == 10_000


def test_an_error_in_the_recorder_is_reported_and_stops_it_instead_of_the_program(recorder: RangeRecorder) -> None:
    with perfkit.range("fine"):
        pass
    recorder.drain()
    recorder.tls.buffer.append("neither a number nor a time")

    with pytest.warns(perfkit.PerfkitWarning, match="the recorder of ranges has stopped: TypeError"):
        recorder.drain()
    with perfkit.range("fine"):
        pass
    assert [row.count for row in recorder.rows()] == [1]


def test_threads_of_many_names_share_a_row(recorder: RangeRecorder) -> None:
    def work() -> None:
        with perfkit.range("threaded"):
            pass

    for index in range(80):
        thread = threading.Thread(target=work, name=f"worker-{index}")
        thread.start()
        thread.join()

    rows = {row.thread: row.count for row in recorder.rows()}
    assert len(rows) == 65
    assert sum(rows.values()) == 80


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not on this platform")
def test_a_forked_child_records_nothing_and_the_parent_goes_on(run_python: Callable[..., object]) -> None:
    run_python(
        """
        import os, perfkit
        from perfkit.ranges import start_recorder, listeners
        recorder = start_recorder()
        with perfkit.range("parent"):
            child = os.fork()
            if child == 0:
                with perfkit.range("child"):
                    pass
                os._exit(listeners.mode)
        assert os.waitpid(child, 0)[1] == 0
        recorder.stop()
        assert [(row.name, row.count) for row in recorder.rows()] == [("parent", 1)]
        """
    )
