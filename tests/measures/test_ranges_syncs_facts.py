from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.host.range_times import measure_range_times
from perfkit.measures.host.sync_calls import measure_sync_calls
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.measures.steps.traced_step import measure_traced_step
from perfkit.measures.trace_facts import measure_trace_facts
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def test_a_range_holds_the_device_work_launched_in_it_also_by_ranges_inside(build: TraceBuilder) -> None:
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


def test_a_blocking_call_is_told_by_the_outermost_op_and_the_range_it_stands_in(build: TraceBuilder) -> None:
    build.range("metrics", 0, 1_000)
    build.op("aten::item", 100, 600)
    build.op("aten::_local_scalar_dense", 150, 550)
    build.launch(200, 250, 260, "Memcpy DtoH (Device -> Pageable)", api="cudaMemcpyAsync")
    build.call("cudaStreamSynchronize", 310, 500)
    build.call("cudaDeviceSynchronize", 2_000, 2_500)
    build.call("cudaEventQuery", 3_000, 3_001)
    build.launch(4_000, 4_100, 4_200, "Memcpy HtoD (Pinned -> Device)", api="cudaMemcpyAsync")

    found = [(c.name, c.op, c.range, c.count, c.blocked_ns) for c in measure_sync_calls(build.read())]

    assert found == [
        ("cudaDeviceSynchronize", None, None, 1, 500),
        ("cudaStreamSynchronize", "aten::item", "metrics", 1, 190),
        ("cudaMemcpyAsync", "aten::item", "metrics", 1, 100),
    ]


def test_calls_outside_the_steps_do_not_count(build: TraceBuilder) -> None:
    build.step(0, 0, 1_000)
    build.op("aten::mm", 10, 20)
    build.call("cudaStreamSynchronize", 100, 200)
    build.call("cudaDeviceSynchronize", 5_000, 9_000)  # the profiler's own, at its end

    assert [call.name for call in measure_sync_calls(build.read())] == ["cudaStreamSynchronize"]


def test_facts_of_a_recorded_cpu_trace(recorded: Trace) -> None:
    facts = measure_trace_facts(recorded)

    assert (facts.format, facts.device_events, facts.devices, facts.steps) == ("kineto", 0, (), 3)
    assert (facts.has_shapes, facts.has_stacks, facts.lost) == (True, False, ())
    assert facts.path == str(recorded.path)


def test_a_trace_without_events_measures_to_nothing(build: TraceBuilder) -> None:
    trace = build.read()

    assert (measure_range_times(trace), measure_sync_calls(trace), measure_device_time(trace)) == ((), (), ())
    assert (measure_traced_step(trace), measure_op_times(trace)) == (None, None)
    assert (measure_trace_facts(trace).events, measure_trace_facts(trace).span_ns) == (0, 0)


def test_facts_of_real_traces(shared: Callable[[str], Trace]) -> None:
    a100 = measure_trace_facts(shared("a100-8ranks-training.json.gz"))
    h100 = measure_trace_facts(shared("h100-inference-image.json.gz"))
    nsys = measure_trace_facts(shared("nsys-mock.sqlite"))

    assert (a100.devices, a100.rank, a100.world_size, a100.steps) == (("NVIDIA A100-PG509-200",), 3, 8, 6)
    assert (h100.has_stacks, h100.has_shapes, h100.device_events) == (True, True, 156)
    assert (nsys.format, nsys.devices, nsys.device_events) == ("nsys", ("NVIDIA GeForce RTX 3080",), 3)
