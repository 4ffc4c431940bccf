"""What a trace contains and what is missing."""

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


def test_facts_of_a_recorded_cpu_trace(recorded: Trace) -> None:
    facts = measure_trace_facts(recorded)

    assert (facts.format, facts.device_events, facts.devices, facts.steps) == ("kineto", 0, (), 3)
    assert (facts.has_shapes, facts.has_stacks, facts.lost) == (True, False, ())
    assert facts.path == str(recorded.path)


def test_a_trace_without_events_has_no_measures(build: TraceBuilder) -> None:
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
