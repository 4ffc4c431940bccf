"""The figures of Holistic Trace Analysis on the real traces: equal where it is right, and why not where it is not.

HTA looks at other events than perfkit: without the last step, without device work whose launch is not in the trace, and
without a window of steps. So perfkit measures just those events here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from perfkit.measures.device._idle import BACK_TO_BACK_NS
from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.results.device import DeviceTime
from perfkit.trace import Trace
from perfkit.trace.columns import Kind
from perfkit.trace.intervals import union

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
COLUMNS = ("start_ns", "end_ns", "name", "track", "kind", "correlation", "device", "stream", "bytes", "sequence")

RIGHT = (
    "a100-2ranks-nccl",
    "a100-8ranks-training",
    "h100-inference-image",
    "mi250-rocm",
    "resnet50-workers-0.pt.trace",
    "resnet50-workers-4.pt.trace",
    "v100-2ranks-training",
)


class Figures(NamedTuple):
    """HTA's figures of one rank, in us."""

    times: tuple[float, float, float, float]
    overlap_percent: float
    waits: dict[int, tuple[float, float, float]]


@pytest.fixture
def hta(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Figures]:
    # Rounded to whole us, short kernels end before they begin (HTA's default, see below).
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    pytest.importorskip("hta", reason="HTA is not installed: pip install -c constraints.txt --group bench")
    return analyse


def analyse(name: str) -> Figures:
    from hta.trace_analysis import TraceAnalysis

    analysis: Any = TraceAnalysis(trace_files={0: str(SHARED / f"{name}.json.gz")}, trace_dir=str(SHARED))
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    # HTA documents ns and takes us.
    delay = BACK_TO_BACK_NS // 1000
    idle, _ = analysis.get_idle_time_breakdown(ranks=[0], consecutive_kernel_delay=delay, visualize=False)
    waits: dict[int, dict[str, float]] = {}
    for row in idle.itertuples():
        waits.setdefault(row.stream, {})[row.idle_category] = row.idle_time
    kinds = ("host_wait", "kernel_wait", "other")
    return Figures(
        tuple(float(times[f"{of}_time(us)"]) for of in ("kernel", "idle", "compute", "non_compute")),
        float(overlap["comp_comm_overlap_pctg"]),
        {stream: tuple(found.get(kind, 0.0) for kind in kinds) for stream, found in waits.items()},
    )


def as_hta_sees_it(trace: Trace) -> Trace:
    """The events that HTA keeps; without ranges, so that the window is the device's own."""
    kept = np.ones(len(trace), bool)
    if trace.steps.row.size >= 2:
        kept[:] = False
        kept[trace.host_rows] = trace.start_ns[trace.host_rows] < trace.steps.start_ns[-1]
        launch = trace.launch[trace.device_rows]
        kept[trace.device_rows] = (launch >= 0) & kept[launch]
    kept &= trace.kind != Kind.RANGE
    return dataclasses.replace(trace, **{column: getattr(trace, column)[kept] for column in COLUMNS})


def times_of(device: DeviceTime) -> tuple[float, float, float, float]:
    times = (device.window_ns, device.idle_ns, device.compute_ns, device.busy_ns - device.compute_ns)
    return tuple(ns / 1000 for ns in times)


def waits_of(device: DeviceTime) -> dict[int, tuple[float, float, float]]:
    return {one.stream: (one.late_ns / 1e3, one.back_to_back_ns / 1e3, one.queued_ns / 1e3) for one in device.streams}


@pytest.mark.parametrize("name", RIGHT)
def test_busy_idle_compute_and_overlap_are_those_of_hta(
    name: str, hta: Callable[[str], Figures], shared: Callable[[str], Trace]
) -> None:
    trace = shared(f"{name}.json.gz")
    theirs = hta(name)

    (device,) = measure_device_time(as_hta_sees_it(trace))

    # HTA computes in float64 us since 1970, which are 0.25 us apart in the traces that count from there.
    assert times_of(device) == pytest.approx(theirs.times, abs=0.002, rel=1e-9)
    if device.communication_ns:
        assert round(100 * device.overlap_ns / device.communication_ns, 2) == theirs.overlap_percent
    else:
        assert np.isnan(theirs.overlap_percent)


@pytest.mark.parametrize("name", [name for name in RIGHT if name != "v100-2ranks-training"])
def test_what_the_streams_waited_for_equals_what_hta_reports(
    name: str, hta: Callable[[str], Figures], shared: Callable[[str], Trace]
) -> None:
    trace = shared(f"{name}.json.gz")
    theirs = hta(name)

    (device,) = measure_device_time(as_hta_sees_it(trace))

    for stream, waits in waits_of(device).items():
        assert waits == pytest.approx(theirs.waits.get(stream, (0, 0, 0)), abs=0.02)  # HTA rounds to 0.01 us


def test_hta_counts_time_twice_where_events_of_one_stream_overlap(
    hta: Callable[[str], Figures], shared: Callable[[str], Trace]
) -> None:
    trace = as_hta_sees_it(shared("v100-2ranks-training.json.gz"))
    theirs = hta("v100-2ranks-training").waits[7]
    rows = trace.device_rows[trace.stream[trace.device_rows] == 7]
    rows = rows[np.lexsort((trace.end_ns[rows], trace.start_ns[rows]))]
    gaps = trace.start_ns[rows[1:]] - trace.end_ns[rows[:-1]]

    (device,) = measure_device_time(trace)

    late, back_to_back, queued = waits_of(device)[7]
    # It measures from the end of the event before, not from the end of all events before: negative gaps are taken off.
    assert (late, queued) == (theirs[0], theirs[2])
    assert back_to_back + gaps[gaps < 0].sum() / 1000 == pytest.approx(theirs[1])
    assert back_to_back > theirs[1]


def test_hta_takes_records_of_waits_for_device_work(
    hta: Callable[[str], Figures], shared: Callable[[str], Trace]
) -> None:
    trace = shared("a100-alexnet-cuda-sync-events.json.gz")
    theirs = hta("a100-alexnet-cuda-sync-events")
    rows = np.concatenate((trace.device_rows, np.flatnonzero(trace.kind == Kind.SYNC)))

    (device,) = measure_device_time(as_hta_sees_it(trace))

    window = (trace.end_ns[rows].max() - trace.start_ns[rows].min()) / 1000
    busy = union(trace.start_ns[rows], trace.end_ns[rows]).length_ns / 1000
    assert theirs.times[:2] == pytest.approx((window, window - busy))
    # So its window ends with a sync, 76 ms after the last work.
    assert theirs.times[0] - times_of(device)[0] == pytest.approx(75_767)
    # Its breakdown of the streams leaves the records out, and agrees.
    assert {stream: waits for stream, waits in waits_of(device).items() if any(waits)} == theirs.waits


def test_hta_cannot_read_a_trace_without_a_device(
    hta: Callable[[str], Figures], shared: Callable[[str], Trace]
) -> None:
    assert measure_device_time(shared("cpu-only-rank34.json.gz")) == ()
    with pytest.raises(IndexError):
        hta("cpu-only-rank34")


def test_hta_rounds_kernels_away_by_default(
    hta: Callable[[str], Figures], shared: Callable[[str], Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = measure_device_time(as_hta_sees_it(shared("a100-2ranks-nccl.json.gz")))
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "0")

    window, idle, _, _ = hta("a100-2ranks-nccl").times

    # Starts are rounded up and ends down: up to 1 us less of each of 2,500 events.
    assert 500 < device.busy_ns / 1000 - (window - idle) < 2_500
