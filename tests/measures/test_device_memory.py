from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.measures.host.range_times import measure_range_times
from perfkit.measures.memory._levels import BUCKETS
from perfkit.measures.memory.device_memory import measure_device_memory
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.measures.results.memory import DeviceMemory
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder


@pytest.fixture
def change(build: TraceBuilder) -> Callable[..., None]:
    """Writes an allocation (or, negative, a free) of one device."""

    def write(at: int, size: int, address: int | None = None, *, tid: int = 1, device: int = 0, **args: Any) -> None:
        where = {"Device Type": int(device >= 0), "Device Id": device, "Bytes": size}
        if address is not None:
            where["Addr"] = address
        build.events.append(
            f'{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 9, "tid": {tid},'
            f' "ts": {at // 1000}.{at % 1000:03}, "args": {str({**where, **args}).replace(chr(39), chr(34))}}}'
        )

    return write


def _one(trace: Trace) -> DeviceMemory:
    (found,) = measure_device_memory(trace)
    return found


def test_the_peak_its_step_phase_and_holders(build: TraceBuilder, change: Callable[..., None]) -> None:
    build.step(4, 0, 10_000)
    build.range("block", 1_000, 2_000)
    build.op("aten::linear", 1_100, 1_900)
    build.op("aten::addmm", 1_200, 1_800)
    build.op("autograd::engine::evaluate_function: AddmmBackward0", 5_000, 6_000, tid=2)
    build.op("aten::mm", 5_100, 5_900, tid=2)
    change(500, 100, 1, **{"Total Allocated": 1_100, "Total Reserved": 2_000})
    change(1_500, 400, 2, **{"Total Allocated": 1_500, "Total Reserved": 2_000})
    change(4_000, -100, 1, **{"Total Allocated": 1_400, "Total Reserved": 2_000})
    change(5_500, 300, 1, tid=2, **{"Total Allocated": 1_700, "Total Reserved": 4_000})
    change(7_000, -400, 2, **{"Total Allocated": 1_300, "Total Reserved": 3_000})

    found = _one(build.read())

    assert (found.device, found.peak_bytes, found.peak_ns) == ("cuda:0", 1_700, 5_500)
    assert (found.peak_step, found.peak_phase) == (4, "backward")
    assert (found.reserved_bytes, found.reserved_peak_bytes, found.is_absolute) == (4_000, 4_000, True)
    assert [(one.bytes, one.op, one.top_op, one.range, one.step) for one in found.held] == [
        (400, "aten::addmm", "aten::linear", "block", 4),
        (300, "aten::mm", "autograd::engine::evaluate_function: AddmmBackward0", None, 4),
    ]
    assert (found.other_bytes, found.before_bytes, found.step_end_bytes) == (0, 1_000, (1_300,))


def test_host_and_devices_are_separate_and_the_host_counts_from_the_start(
    build: TraceBuilder, change: Callable[..., None]
) -> None:
    change(100, 64, 7, device=-1, **{"Total Allocated": 5_064})
    change(200, 32, 7, device=1, **{"Total Allocated": 32})
    change(300, -64, 7, device=-1, **{"Total Allocated": 5_000})

    found = {one.device: one for one in measure_device_memory(build.read())}

    assert (found["cpu"].peak_bytes, found["cpu"].is_absolute, found["cpu"].before_bytes) == (64, False, None)
    assert (found["cuda:1"].peak_bytes, found["cuda:1"].is_absolute, found["cuda:1"].before_bytes) == (32, True, 0)
    assert (found["cpu"].allocations, found["cpu"].frees) == (1, 1)


def test_old_traces_have_changes_only(build: TraceBuilder, change: Callable[..., None]) -> None:
    change(100, -50)
    change(200, 80)

    found = _one(build.read())

    assert (found.peak_bytes, found.is_absolute) == (30, False)
    assert (found.held, found.other_bytes, found.before_bytes) == ((), None, None)


def test_memory_of_ops_and_ranges_is_split_into_own_and_inner(build: TraceBuilder, change: Callable[..., None]) -> None:
    build.range("outer", 0, 5_000)
    build.range("inner", 1_000, 2_000)
    build.op("aten::linear", 1_100, 1_900)
    build.op("aten::empty", 1_200, 1_300)
    change(1_250, 512, 1)
    change(1_500, 100, 2)
    change(1_600, -512, 1)
    change(3_000, 8, 3)
    trace = build.read()

    ops = measure_op_times(trace)

    assert ops is not None
    memory = {op.name: op.memory["cuda:0"] for op in ops.rows if op.memory}
    assert {name: (one.allocated_bytes, one.freed_bytes, one.self_bytes) for name, one in memory.items()} == {
        "aten::linear": (612, 512, -412),
        "aten::empty": (512, 0, 512),
    }
    ranges = {one.name: one.memory["cuda:0"] for one in measure_range_times(trace) if one.memory}
    assert {name: (one.allocated_bytes, one.freed_bytes, one.self_bytes) for name, one in ranges.items()} == {
        "outer": (620, 512, 8),
        "inner": (612, 512, 100),
    }


def test_a_trace_without_memory_events_has_no_memory(build: TraceBuilder) -> None:
    build.op("aten::mm", 0, 100)
    trace = build.read()

    ops = measure_op_times(trace)

    assert measure_device_memory(trace) == ()
    assert ops is not None
    assert ops.rows[0].memory is None


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**6), st.integers(0, 10**7)), min_size=1, max_size=60)
)
def test_holders_sum_to_the_peak_and_no_bucket_hides_it(
    build: TraceBuilder, change: Callable[..., None], blocks: list[tuple[int, int, int]]
) -> None:
    build.events.clear()
    events = [(at, size, address) for address, (at, size, _) in enumerate(blocks)]
    events += [(at + life + 1, -size, address) for address, (at, size, life) in enumerate(blocks)]
    level = highest = 1_000
    for at, size, address in sorted(events):
        level += size
        highest = max(highest, level)
        change(at, size, address, **{"Total Allocated": level})

    found = _one(build.read())

    assert found.peak_bytes == highest == max(found.timeline.allocated_bytes)
    assert len(found.timeline.allocated_bytes) <= BUCKETS
    assert sum(one.bytes for one in found.held) + (found.other_bytes or 0) + 1_000 == highest
    assert found.before_bytes == 1_000


def test_of_a_real_inference_the_weights_were_there_before(shared: Callable[[str], Trace]) -> None:
    found = {one.device: one for one in measure_device_memory(shared("h100-inference-image.json.gz"))}

    device = found["cuda:0"]
    assert device.peak_bytes == max(device.timeline.allocated_bytes)
    assert device.held[0].function is not None
    assert sum(one.bytes for one in device.held) + (device.other_bytes or 0) + (device.before_bytes or 0) == (
        device.peak_bytes
    )
    # The model's weights take most of it, and nothing is left behind after the step.
    assert (device.before_bytes or 0) > 0.9 * device.peak_bytes
    assert device.step_end_bytes == (device.before_bytes,)
