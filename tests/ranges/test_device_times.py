"""Device time of a range: event pairs that are read later, never waited for, and given back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest

import perfkit
from perfkit.ranges import start_recorder
from perfkit.ranges.device_times import DeviceTimes
from perfkit.ranges.recorder import RangeRecorder
from perfkit.run.rank_writer import RankWriter
from perfkit.run.reading import RankFolder
from perfkit.run.records import RangeRow


class Stream(NamedTuple):
    """A stream of a device."""

    device_index: int


class Event:
    """A CUDA event of a device whose clock moves by hand."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.at: float | None = None

    def record(self, stream: Stream) -> None:
        assert not self.cuda.is_captured
        self.at = self.cuda.issued

    def query(self) -> bool:
        return self.at is None or self.at <= self.cuda.passed

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return end.at - self.at  # type: ignore[operator]  # both were recorded


class Cuda:
    """Events of a device: work is issued (ms) and later passed by the device."""

    def __init__(self) -> None:
        self.issued = self.passed = 0.0
        self.is_captured = False
        self.device = 0
        self.events = 0

    def new(self) -> Event:
        self.events += 1
        return Event(self)

    def capturing(self) -> bool:
        return self.is_captured

    def current_stream(self) -> Stream:
        return Stream(self.device)


def recording(monkeypatch: pytest.MonkeyPatch, cuda: Any, pool: int = 8) -> RangeRecorder:
    made = DeviceTimes.__init__
    monkeypatch.setattr(
        DeviceTimes, "__init__", lambda self, thread_name: made(self, thread_name, events=cuda, pool=pool)
    )
    return start_recorder()


def enter(name: str, times: int, cuda: Cuda) -> None:
    for _ in range(times):
        with perfkit.range(name, device_time=True):
            cuda.issued += 1.0


def device_rows(recorder: RangeRecorder) -> dict[str, tuple[int | None, int | None]]:
    return {row.name: (row.device_count, row.device_ns) for row in recorder.rows()}


def test_every_form_has_its_device_time_once_the_device_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()

    @perfkit.range("timed call", device_time=True)
    def call() -> None:
        cuda.issued += 2.0

    async def task() -> None:
        async with perfkit.range("timed task", device_time=True):
            cuda.issued += 3.0

    recorder = recording(monkeypatch, cuda)
    for _ in range(2):
        with perfkit.range("timed", device_time=True), perfkit.range("untimed"):
            call()
    asyncio.run(task())
    before = device_rows(recorder)
    cuda.passed = cuda.issued
    recorder.stop()

    assert set(before.values()) == {(None, None)}
    assert device_rows(recorder) == {
        "timed": (2, 4_000_000),
        "timed call": (2, 4_000_000),
        "timed task": (1, 3_000_000),
        "untimed": (None, None),
    }
    assert recorder.device_dropped == 0


def test_events_are_used_again_and_never_more_than_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    recorder = recording(monkeypatch, cuda)
    for _ in range(100):
        with perfkit.range("again and again", device_time=True):
            cuda.issued += 1.0
        cuda.passed = cuda.issued - 2.0  # the device is always two ranges behind
    cuda.passed = cuda.issued
    recorder.stop()

    assert device_rows(recorder) == {"again and again": (100, 100_000_000)}
    assert cuda.events <= 8


def test_an_exhausted_pool_drops_counts_and_reports_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    recorder = recording(monkeypatch, cuda, pool=3)
    with pytest.warns(perfkit.PerfkitWarning, match=r"3 ranges wait for device 0.*test_device_times\.py") as reported:
        enter("far ahead", 10, cuda)
    recorder.stop()
    cuda.passed = cuda.issued

    assert device_rows(recorder) == {"far ahead": (3, 3_000_000)}
    assert [row.count for row in recorder.rows()] == [10]
    assert (recorder.device_dropped, len(reported)) == (7, 1)


def test_nothing_is_recorded_or_queried_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    recorder = recording(monkeypatch, cuda)
    with perfkit.range("around the capture", device_time=True):
        cuda.is_captured = True
        with perfkit.range("captured", device_time=True):
            pass
    with perfkit.range("captured until its end", device_time=True):
        pass
    recorder.stop()
    cuda.is_captured = False
    with perfkit.range("across the begin", device_time=True):
        cuda.is_captured = True

    assert set(device_rows(recorder).values()) == {(None, None)}


def test_a_range_keeps_its_stream_on_another_device_and_one_that_fails_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Cuda()
    recorder = recording(monkeypatch, cuda)
    with perfkit.range("moving", device_time=True):
        cuda.device = 1
    assert recorder.device_dropped == 0
    monkeypatch.setattr(Event, "record", lambda self, stream: 1 / 0)
    with pytest.warns(perfkit.PerfkitWarning, match="no device time from here on: ZeroDivisionError"):
        enter("moving", 3, cuda)
    recorder.stop()

    assert [row.count for row in recorder.rows()] == [4]


def test_without_cuda_there_is_no_device_time_and_both_kinds_of_a_name_are_two_ranges(recorder: RangeRecorder) -> None:
    with perfkit.range("either"), perfkit.range("either", device_time=True):
        pass

    assert perfkit.range("either") is not perfkit.range("either", device_time=True)
    assert [(row.count, row.device_ns) for row in recorder.rows()] == [(1, None)] * 2


def test_device_times_are_written_and_read_and_older_files_stay_readable(tmp_path: Path) -> None:
    common = {"category": "", "domain": "perfkit", "thread": "t", "count": 1, "total_ns": 9, "self_ns": 9}
    rows = [
        RangeRow(name="host", min_ns=9, max_ns=9, hist=(0,) * 64, **common),
        RangeRow(name="device", min_ns=9, max_ns=9, hist=(0,) * 64, device_count=1, device_ns=0, **common),
    ]
    RankWriter(tmp_path, 0).write_ranges(rows)
    assert list(RankFolder(tmp_path / "rank-0", 0).ranges) == rows

    file = tmp_path / "rank-0" / "ranges.npz"
    with numpy.load(file) as arrays:
        old = {name: arrays[name] for name in arrays if "device" not in name}
    numpy.savez(file, **old)
    folder = RankFolder(tmp_path / "rank-0", 0)
    assert [(row.name, row.device_ns) for row in folder.ranges] == [("host", None), ("device", None)]
    assert folder.lost == []
