"""What tables count: the steps of a trace, with medians, and where device work comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from perfkit.measures._durations import spread_by
from perfkit.measures.device._origins import main_origins
from perfkit.measures.device.collective_sizes import collective_sizes
from perfkit.measures.device.kernels import measure_kernels
from perfkit.measures.device.launch_list import list_launches
from perfkit.measures.device.launches import measure_launches
from perfkit.measures.device.over_time import bandwidth_over_time, queue_over_time
from perfkit.measures.device.work_groups import call_groups, work_groups
from perfkit.measures.host.api_calls import measure_api_calls
from perfkit.measures.host.range_times import measure_range_times
from perfkit.measures.ops.op_groups import op_groups
from perfkit.measures.ops.op_times import measure_op_times
from perfkit.measures.results.measurements import Measurements
from perfkit.trace import Kind, Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def two_steps(build: TraceBuilder) -> Trace:
    """A set-up with two kernels, then two steps of two kernels each; the second step's last one runs late."""
    build.launch(100, 1_000, 1_500)
    build.launch(200, 1_600, 1_700)
    build.step(1, 10_000, 20_000)
    build.step(2, 20_000, 30_000)
    build.range("epoch", 9_000, 31_000)
    for at in (10_000, 20_000):
        build.range("forward", at + 100, at + 5_000)
        build.frame("train.py(7): train", at + 50, at + 9_000)
        build.op("aten::mm", at + 150, at + 500, **{"Input Dims": [[2, 3], [3, 4]]})
        build.launch(at + 200, at + 1_000, at + 2_000)
        build.op("aten::add", at + 6_000, at + 6_400)
        build.launch(at + 6_100, at + 7_000, at + 7_100 + (30_000 if at == 20_000 else 0), name="add")
    return build.read()


def test_kernels_and_calls_are_counted_over_the_steps_not_over_the_recording(build: TraceBuilder) -> None:
    trace = two_steps(build)

    kernels = measure_kernels(trace)
    assert kernels is not None
    assert {row.name: row.count for row in kernels.rows} == {"gemm": 2, "add": 2}
    assert [(row.name, row.count) for row in measure_api_calls(trace)] == [("cudaLaunchKernel", 4)]
    assert sum(row.count for row in measure_launches(trace)) == len(list(list_launches(trace))) == 4


def test_without_steps_everything_counts(build: TraceBuilder) -> None:
    build.launch(100, 1_000, 1_500)
    build.launch(200, 1_600, 1_700)

    kernels = measure_kernels(build.read())

    assert kernels is not None
    assert [(row.count, row.median_ns) for row in kernels.rows] == [(2, 300)]


def test_a_range_around_the_steps_is_counted_over_the_recording_and_says_so(build: TraceBuilder) -> None:
    found = {row.name: row for row in measure_range_times(two_steps(build))}

    assert (found["epoch"].count, found["epoch"].source) == (1, "recording")
    assert (found["forward"].count, found["forward"].source) == (2, "trace")
    # As the device sees it: from the start of its first kernel to the end of its last.
    assert (found["forward"].device_work, found["forward"].projected_ns) == (2, 2_000)
    assert found["epoch"].projected_ns == 57_100 - 11_000


def test_a_kernel_has_the_call_the_op_and_the_line_that_launch_most_of_it(build: TraceBuilder) -> None:
    trace = two_steps(build)
    kernels = measure_kernels(trace)

    assert kernels is not None
    add = next(row for row in kernels.rows if row.name == "add")
    assert (add.call, add.op, add.at and (add.at.file, add.at.function)) == (
        "cudaLaunchKernel", "aten::add", ("train.py", "train")
    )  # fmt: skip
    rows = np.flatnonzero(trace.is_kind(Kind.KERNEL))
    assert {trace.names[code]: one.op for code, one in main_origins(trace, rows).items()} == {
        "gemm": "aten::mm", "add": "aten::add"
    }  # fmt: skip


def test_a_kernel_of_the_backward_has_the_line_of_the_forward_op_that_made_its_node(build: TraceBuilder) -> None:
    build.frame("train.py(3): forward", 0, 1_000)
    build.op("aten::mm", 100, 200, **{"Sequence number": 5})
    node = "autograd::engine::evaluate_function: MmBackward0"
    build.op(node, 5_000, 6_000, tid=2, **{"Sequence number": 5, "Fwd thread id": 1})
    build.launch(5_100, 7_000, 8_000, name="mm backward", tid=2)

    kernels = measure_kernels(build.read())

    assert kernels is not None
    assert [row.at and row.at.function for row in kernels.rows] == ["forward"]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("step", {("gemm", 1), ("gemm", 2), ("add", 1), ("add", 2)}),
        ("module", {("gemm", "forward"), ("add", "epoch")}),
        ("line", {("gemm", "train.py: train"), ("add", "train.py: train")}),
        ("shape", {("gemm", "2x3 3x4"), ("add", None)}),
    ],
)
def test_kernels_are_grouped_and_each_counts_once(build: TraceBuilder, by: str, expected: set[tuple[str, str]]) -> None:
    groups = work_groups(two_steps(build), by, Kind.KERNEL)

    assert {(row.name, row.key) for row in groups} == expected
    assert sum(row.count for row in groups) == 4


def test_calls_and_ops_are_grouped_by_step(build: TraceBuilder) -> None:
    trace = two_steps(build)

    assert {(row.key, row.count) for row in call_groups(trace, "step")} == {(1, 2), (2, 2)}
    ops = op_groups(trace, "step", Measurements("x"))
    assert {(row.name, row.key, row.count) for row in ops} == {
        ("aten::mm", 1, 1), ("aten::mm", 2, 1), ("aten::add", 1, 1), ("aten::add", 2, 1)
    }  # fmt: skip


def test_groups_that_a_trace_cannot_have_are_empty(build: TraceBuilder) -> None:
    build.op("aten::mm", 0, 100)
    build.launch(10, 200, 300)
    trace = build.read()

    for by in ("shape", "module", "line", "step"):
        assert op_groups(trace, by, Measurements("x")) == work_groups(trace, by, Kind.KERNEL) == []


def test_groups_of_ops_have_the_same_calls_and_own_time_as_ops_by_name(shared_trace: Trace) -> None:
    ops = measure_op_times(shared_trace)
    groups = op_groups(shared_trace, "shape", Measurements("x"))
    if ops is None or not groups:
        return  # a trace without ops or without shapes has nothing to compare
    for one in ops.rows:
        mine = [row for row in groups if row.name == one.name]
        assert sum(row.count for row in mine) == one.count
        assert sum(row.self_ns or 0 for row in mine) == one.self_ns


def test_every_table_of_device_work_counts_the_same_kernels(shared_trace: Trace) -> None:
    kernels = measure_kernels(shared_trace)
    if kernels is None:
        return
    launches = [one for one in list_launches(shared_trace) if one.name in {row.name for row in kernels.rows}]
    assert len(launches) == sum(row.count for row in kernels.rows)
    assert sum(one.duration_ns for one in launches) == kernels.total_ns


def test_the_four_steps_of_a_real_trace_have_the_kernels_launched_in_them(shared: Callable[[str], Trace]) -> None:
    trace = shared("resnet50-workers-0.pt.trace.json.gz")
    kernels = measure_kernels(trace)

    assert kernels is not None
    # The recording has 10,133 kernels, copies and memsets, 6,048 of them launched in its four steps.
    assert (trace.device_rows.size, len(list(list_launches(trace)))) == (10_133, 6_048)


def test_message_sizes_of_a_real_trace_have_their_bus_bandwidth(shared: Callable[[str], Trace]) -> None:
    found = [one for one in collective_sizes(shared("a100-2ranks-nccl.json.gz")) if one.name == "allreduce"]

    assert [one.count for one in found] == [3] * len(found)
    sizes = [one.message_bytes or 0 for one in found]
    assert sizes == sorted(sizes, reverse=True)
    for one in found:
        # Two ranks: nccl-tests' factor is 2 (n - 1) / n = 1.
        assert one.bus_bytes_per_s == pytest.approx((one.message_bytes or 0) / one.mean_ns * 1e9)
        assert (one.best_bus_bytes_per_s or 0) >= (one.bus_bytes_per_s or 0)


def test_bandwidth_over_time_sums_to_the_bytes_that_were_copied(build: TraceBuilder) -> None:
    build.launch(0, 1_000, 3_000, name="Memcpy HtoD (Pinned -> Device)", bytes=4_000)
    build.launch(100, 50_000, 51_000, name="Memcpy HtoD (Pinned -> Device)", bytes=1_000)
    trace = build.read()

    parts = list(bandwidth_over_time(trace))

    assert sum(part.bytes for part in parts) == 5_000
    assert {part.direction for part in parts} == {"HtoD"}
    assert max(part.bytes_per_s for part in parts) == pytest.approx(2e9)


def test_the_queue_over_time_is_what_launches_waited(build: TraceBuilder) -> None:
    build.launch(0, 1_000, 2_000)
    build.launch(200, 2_000, 3_000)
    trace = build.read()
    parts = list(queue_over_time(trace))

    waited = sum(part.depth * (part.end_ns - part.start_ns) for part in parts)
    # Within the device's window, from 1,000 to 3,000, only the second launch waited, until 2,000.
    assert waited == pytest.approx(1_000, rel=0.02)


def test_the_spread_of_durations_is_that_of_numpy() -> None:
    random = np.random.default_rng(0)
    group = random.integers(0, 7, 500)
    group[group == 3] = 4  # a group without members
    duration = random.integers(1, 10**9, 500)

    found = spread_by(group, duration, 7)

    for number in (0, 1, 2, 4, 5, 6):
        mine = duration[group == number]
        assert found["count"][number] == mine.size
        assert found["median_ns"][number] == int(np.median(mine))
        assert found["deviation_ns"][number] == pytest.approx(mine.std(ddof=1))
        assert (found["min_ns"][number], found["max_ns"][number]) == (mine.min(), mine.max())
    assert found["count"][3] == found["median_ns"][3] == 0
