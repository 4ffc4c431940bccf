"""The ranges recorder: each time a range ran in a window, as it was nested, with what did not fit counted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.ranges import start_recorder
from perfkit.record.windows import range_spans
from perfkit.record.windows.range_spans import RangesRecorder
from perfkit.run.arrays import Spans
from perfkit.run.reading import RankFolder, read_run

WINDOW = perfkit.schedule(wait=2, warmup=1, active=2, repeat=1)


def rank_of(folder: Path) -> RankFolder:
    return read_run(folder).ranks[0]


def record(folder: Path, body: Any, **options: Any) -> Spans | None:
    with perfkit.profile(folder, quiet=True, recorders=("ranges",), **{"schedule": WINDOW, **options}) as prof:
        for number in prof.steps(range(8)):
            body(number)
    return rank_of(folder).spans(0)


def test_each_time_a_range_ran_in_the_window_is_a_row_with_its_depth(tmp_path: Path) -> None:
    def body(number: int) -> None:
        with perfkit.range("outer", category="mine"), perfkit.range(f"inner {number}"):
            pass

    found = record(tmp_path / "x", body)
    assert found is not None
    rows = [row for row in found.rows if row.name.startswith(("outer", "inner"))]
    assert [(row.name, row.category, row.depth) for row in rows] == [
        ("outer", "mine", 0),
        ("inner 3", "", 1),
        ("outer", "mine", 0),
        ("inner 4", "", 1),
    ]
    assert all(row.thread == "MainThread" and row.end_ns is not None and row.end_ns > row.start_ns for row in rows)
    steps = {step.step: step for step in rank_of(tmp_path / "x").steps}
    assert steps[3].start_ns <= rows[0].start_ns < steps[4].start_ns <= rows[2].start_ns  # on the run's own clock
    assert found.dropped == 0


def test_other_threads_are_kept_also_those_that_begin_inside_the_window(tmp_path: Path) -> None:
    def work() -> None:
        with perfkit.range("work"):
            pass

    def body(number: int) -> None:
        thread = threading.Thread(target=work, name=f"worker {number}")
        thread.start()
        thread.join()

    found = record(tmp_path / "x", body)
    assert found is not None
    assert [row.thread for row in found.rows if row.name == "work"] == ["worker 3", "worker 4"]


def test_a_range_around_the_window_has_its_begin_and_no_end(tmp_path: Path) -> None:
    with perfkit.profile(tmp_path / "x", quiet=True, recorders=("ranges",), schedule=WINDOW) as prof:  # noqa: SIM117 - order
        with perfkit.range("epoch"):
            for _ in prof.steps(range(8)):
                with perfkit.range("step"):
                    pass

    found = rank_of(tmp_path / "x").spans(0)
    assert found is not None
    epoch = next(row for row in found.rows if row.name == "epoch")
    steps = rank_of(tmp_path / "x").steps
    assert epoch.end_ns is None
    assert epoch.start_ns < next(step.start_ns for step in steps if step.step == 3)
    assert {row.depth for row in found.rows if row.name == "step"} == {1}


def test_what_does_not_fit_is_counted_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_spans, "MAX_ROWS", 10)

    def body(number: int) -> None:
        for _ in range(50):
            with perfkit.range("many"):
                pass

    found = record(tmp_path / "x", body)
    assert found is not None
    assert len(found.rows) <= 10
    assert len(found.rows) + found.dropped == 100
    rank = rank_of(tmp_path / "x").rank
    assert rank is not None
    assert any("ranges-0.npz, 90 more were not kept" in note for note in rank.notes)


def test_the_sums_of_the_run_are_the_same_with_and_without_it(tmp_path: Path) -> None:
    def body(number: int) -> None:
        with perfkit.range("counted"):
            pass

    record(tmp_path / "x", body)
    record(tmp_path / "y", body, schedule=perfkit.schedule(wait=100, warmup=0, active=1))
    for name in "xy":
        assert {row.name: row.count for row in rank_of(tmp_path / name).ranges}["counted"] == 8


def test_nothing_of_it_stays_in_the_recorder_of_ranges(tmp_path: Path) -> None:
    recorder = start_recorder()
    try:
        with perfkit.range("before"):
            pass
        ranges = RangesRecorder(lambda index: tmp_path / f"window-{index}.pt.trace.json.gz", print, print)
        for index in range(2):
            assert ranges.open(index, 0) is None
            ranges.activate(index)
            ranges.end(index, early=False)
            ranges.write(index)
        ranges.wait()
        assert recorder._log is None
    finally:
        recorder.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranges-0.npz", "ranges-1.npz"]


def test_where_no_ranges_are_recorded_it_says_so(tmp_path: Path) -> None:
    ranges = RangesRecorder(lambda index: tmp_path / "window-0.pt.trace.json.gz", print, print)

    assert "does not run" in (ranges.open(0, 0) or "")
