"""An export of a whole program cut to its window."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perfkit.errors import TraceError
from perfkit.nsight_runner.nsys_window import cut_to_last_window
from perfkit.trace import Trace, read_trace
from perfkit.trace.nsight.nsys_gpu_metrics import read_gpu_metrics

Export = Callable[..., Path]


def spans(trace: Trace) -> list[tuple[str, int, int]]:
    """Name, start and end of each event, in the order of their start."""
    rows = zip(trace.name.tolist(), trace.start_ns.tolist(), trace.end_ns.tolist(), strict=True)
    return sorted(((trace.names[name], start, end) for name, start, end in rows), key=lambda row: (row[1], -row[2]))


def test_ranges_outside_are_dropped_and_those_across_end_with_the_window(tmp_path: Path, export: Export) -> None:
    rows = [("epoch", 0, 1000), ("warm", 10, 90), ("perfkit.window", 100, 200), ("loss", 120, 130), ("late", 190, 300)]
    whole = export(tmp_path / "whole.sqlite", [*rows, ("after", 300, 310)])

    window = cut_to_last_window(whole, tmp_path / "cut.sqlite")

    assert window == (0, 1, 100, 200)
    assert spans(read_trace(tmp_path / "cut.sqlite")) == [
        ("epoch", 100, 200),
        ("perfkit.window", 100, 200),
        ("loss", 120, 130),
        ("late", 190, 200),
    ]


def test_kernels_stay_where_they_were_launched_in_the_window_also_if_they_ran_later(
    tmp_path: Path, export: Export
) -> None:
    # Launched before and run inside; launched inside and run after; launched and run after.
    kernels = [(50, 110, 120), (150, 210, 220), (250, 260, 270)]
    whole = export(tmp_path / "whole.sqlite", [("perfkit.window", 100, 200)], kernels=kernels)

    cut_to_last_window(whole, tmp_path / "cut.sqlite")
    trace = read_trace(tmp_path / "cut.sqlite")

    assert spans(trace) == [("perfkit.window", 100, 200), ("launch", 150, 151), ("k", 210, 220)]
    assert trace.start_ns[trace.launch[trace.device_rows]].tolist() == [150]


def test_samples_of_gpu_metrics_are_those_of_the_window_and_messages_stay(tmp_path: Path, export: Export) -> None:
    whole = export(tmp_path / "whole.sqlite", [("perfkit.window", 100, 200)])
    with closing(sqlite3.connect(whole)) as database, database:
        database.execute(
            "create table GPU_METRICS (rawTimestamp int, timestamp int, typeId int, metricId int, value int)"
        )
        samples = [(0, at, 0x1_0000_0300, 0, at) for at in range(0, 400, 50)]
        database.executemany("insert into GPU_METRICS values (?, ?, ?, ?, ?)", samples)
        database.execute("create table TARGET_INFO_GPU_METRICS (typeId int, metricId int, metricName text)")
        database.execute("insert into TARGET_INFO_GPU_METRICS values (4294968064, 0, 'SMs Active [Throughput %]')")
        database.execute("create table DIAGNOSTIC_EVENT (timestamp int, severity int, text text)")
        database.execute("insert into DIAGNOSTIC_EVENT values (390, 2, 'events were lost')")

    cut_to_last_window(whole, tmp_path / "cut.sqlite")

    [metric] = read_gpu_metrics(tmp_path / "cut.sqlite")
    assert (metric.name, metric.samples, metric.low, metric.high) == ("SMs Active", 2, 100, 150)
    assert any("events were lost" in sentence for sentence in read_trace(tmp_path / "cut.sqlite").lost)


def test_of_several_windows_the_last_is_taken(tmp_path: Path, export: Export) -> None:
    rows = [("perfkit.window", 100, 200), ("a", 110, 120), ("perfkit.window", 300, 400), ("b", 310, 320)]

    window = cut_to_last_window(export(tmp_path / "whole.sqlite", rows), tmp_path / "cut.sqlite")

    assert window == (1, 2, 300, 400)
    assert [name for name, _, _ in spans(read_trace(tmp_path / "cut.sqlite"))] == ["perfkit.window", "b"]


def test_a_report_of_one_window_of_several_names_the_window(tmp_path: Path, export: Export) -> None:
    whole = export(tmp_path / "whole.sqlite", [("perfkit.window", 100, 200)])
    with closing(sqlite3.connect(whole)) as database, database:
        database.execute("alter table NVTX_EVENTS add column int64Value int")
        database.execute("update NVTX_EVENTS set int64Value = 4 where eventType = 59")

    assert cut_to_last_window(whole, tmp_path / "cut.sqlite") == (4, 1, 100, 200)


def test_without_a_window_nothing_is_written(tmp_path: Path, export: Export) -> None:
    whole = export(tmp_path / "whole.sqlite", [("a", 110, 120)])

    assert cut_to_last_window(whole, tmp_path / "cut.sqlite") is None
    assert [file.name for file in tmp_path.iterdir()] == ["whole.sqlite"]


def test_a_damaged_export_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "whole.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 5000)

    with pytest.raises(TraceError, match="could not be cut to its last window"):
        cut_to_last_window(tmp_path / "whole.sqlite", tmp_path / "cut.sqlite")
    assert [file.name for file in tmp_path.iterdir()] == ["whole.sqlite"]
