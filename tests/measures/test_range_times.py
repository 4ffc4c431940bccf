"""Ranges have their host time, and the device work launched inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.measures.host.range_times import measure_range_times
from perfkit.measures.trace_facts import measure_trace_facts
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def test_a_range_has_the_device_work_launched_in_it_also_by_ranges_inside(build: TraceBuilder) -> None:
    build.range("forward", 0, 1_000)
    build.range("attention", 100, 500)
    build.launch(200, 5_000, 6_000)
    build.launch(300, 5_500, 6_500, stream=9)
    build.launch(700, 8_000, 8_100)
    build.launch(2_000, 9_000, 9_999)

    found = {one.name: (one.count, one.host_ns, one.device_busy_ns) for one in measure_range_times(build.read())}

    assert found == {"forward": (1, 1_000, 1_600), "attention": (1, 400, 1_500)}


def test_work_of_a_thread_without_ranges_belongs_to_the_range_open_on_the_main_thread(build: TraceBuilder) -> None:
    build.range("backward", 0, 1_000)
    for i in range(5):  # more ranges than the main thread has, but they cover less time
        build.range("nccl:all_reduce", 200 * i, 200 * i + 120, tid=2)
    build.launch(330, 5_000, 6_000, tid=2)
    build.launch(610, 7_000, 7_500, tid=2)  # inside nccl:all_reduce on its own thread

    found = {one.name: one.device_busy_ns for one in measure_range_times(build.read())}

    assert found == {"backward": 1_000, "nccl:all_reduce": 500}


def test_steps_are_not_ranges_and_a_cpu_trace_has_no_device_time(recorded: Trace) -> None:
    found = {one.name: one for one in measure_range_times(recorded)}

    assert found["Optimizer.step#SGD.step"].count == 3
    assert found["Optimizer.step#SGD.step"].device_busy_ns is None
    assert not any(name.startswith("ProfilerStep") for name in found)


def test_a_ranges_device_time_is_never_more_than_the_devices(shared_trace: Trace) -> None:
    span_ns = measure_trace_facts(shared_trace).span_ns

    for one in measure_range_times(shared_trace):
        assert one.host_ns >= 0
        assert one.device_busy_ns is None or 0 <= one.device_busy_ns <= span_ns
