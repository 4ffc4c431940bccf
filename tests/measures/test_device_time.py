from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from perfkit.measures.device.device_time import measure_device_time
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def causes(build: TraceBuilder) -> dict[str, int]:
    (device,) = measure_device_time(build.read())
    assert sum(device.causes.values()) == device.idle_ns
    return device.causes


@pytest.mark.parametrize(
    ("begins", "expected"),
    [
        (20_000, {"sync": 20_000, "launch latency": 4_321}),
        (48_000, {"sync": 4_003, "python": 6_007, "operators": 9_990, "launch latency": 4_321}),
        (
            51_000,
            {"sync": 1_003, "uninstrumented": 1_000, "python": 8_007, "operators": 9_990, "launch latency": 4_321},
        ),
    ],
    ids=["30 us ahead", "2 us ahead", "not ahead"],
)
def test_a_sync_is_the_cause_of_idle_time_after_it_as_far_as_the_host_was_ahead(
    build: TraceBuilder, begins: int, expected: dict[str, int]
) -> None:
    build.launch(900, 1_000, 50_000)
    build.call("cudaStreamSynchronize", begins, 52_003)  # returns 2003 ns after the device is done
    build.frame("train.py(7): log", 52_003, 60_010)
    build.op("aten::mm", 60_010, 80_000)
    build.launch(70_000, 74_321, 90_000)

    assert causes(build) == expected


def test_work_below_a_loader_is_data_loading_whatever_op_it_is(build: TraceBuilder) -> None:
    build.launch(900, 1_000, 2_000)
    build.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 2_500, 90_000)
    build.op("aten::stack", 10_000, 80_000)
    build.launch(95_000, 96_000, 97_000)

    assert causes(build) == {"data loading": 87_500, "uninstrumented": 500 + 5_000, "launch latency": 1_000}


def test_an_allocation_inside_an_op_is_an_allocation_and_an_optimizer_inherits(build: TraceBuilder) -> None:
    build.launch(900, 1_000, 2_000)
    build.range("Optimizer.step#SGD.step", 2_000, 50_000)
    build.op("aten::empty", 10_000, 40_000)
    build.call("cudaMalloc", 15_000, 35_000)
    build.launch(45_000, 45_500, 46_000)

    assert causes(build) == {"allocation": 20_000, "optimizer": 23_000, "launch latency": 500}


def test_work_queued_before_the_idle_began_waited_for_its_own_queue(build: TraceBuilder) -> None:
    build.launch(100, 1_000, 2_000)
    build.launch(300, 2_500, 3_000)  # 500 ns later: back to back
    build.launch(500, 43_000, 44_000, stream=9)  # queued early, 40 us late: a dependency
    build.launch(700, 94_000, 95_000, api="cudaGraphLaunch")
    build.work("gemm", 96_000, 97_000)  # its launch is unknown

    found = causes(build)

    assert found == {
        "before a graph": 50_000,
        "dependency": 40_000,
        "no launch in the trace": 1_000,
        "queued back to back": 500,
    }


def test_tiny_kernels_below_python_frames_name_python_and_the_frame(build: TraceBuilder) -> None:
    build.frame("train.py(1): forward", 0, 400_000)
    for i in range(10):
        build.op("aten::add", 30_000 * i, 30_000 * i + 5_000)
        build.launch(30_000 * i + 1_000, 30_000 * i + 3_000, 30_000 * i + 4_000)

    (device,) = measure_device_time(build.read())

    # Nine gaps of 29 us: 1 us until the op ends, 25 in the frame, 1 in the next op until its launch, 2 latency.
    assert device.causes == {"python": 9 * 25_000, "operators": 9 * 2_000, "launch latency": 9 * 2_000}
    assert {gap.event for gap in device.longest} == {"train.py(1): forward"}
    assert [gap.duration_ns for gap in device.longest] == [29_000] * 9


def test_only_the_launching_thread_is_blamed(build: TraceBuilder) -> None:
    build.launch(900, 1_000, 2_000, tid=2)
    build.op("aten::mm", 2_000, 30_000, tid=1)
    build.call("cudaStreamSynchronize", 2_000, 20_000, tid=2)
    build.launch(25_000, 26_000, 27_000, tid=2)

    assert causes(build) == {"sync": 18_000, "uninstrumented": 5_000, "launch latency": 1_000}


def test_the_profilers_own_time_is_taken_out_of_what_it_fell_into(build: TraceBuilder) -> None:
    build.launch(900, 1_000, 2_000)
    build.op("aten::mm", 2_000, 50_000)
    build.add("overhead", "Buffer Flush", 10_000, 22_000, tid=0, pid=-1)
    build.launch(40_000, 41_000, 42_000)

    assert causes(build) == {"operators": 26_000, "profiler": 12_000, "launch latency": 1_000}


def test_the_window_is_the_steps_and_the_work_launched_in_them(build: TraceBuilder) -> None:
    build.launch(500, 1_000, 1_500)  # before the first step
    build.step(0, 2_000, 50_000)
    build.step(1, 50_000, 100_000)
    build.op("aten::mm", 3_000, 49_000)
    build.op("aten::mm", 52_000, 99_000)
    build.launch(4_000, 5_000, 6_000)
    build.launch(98_000, 99_000, 120_000)  # runs on after the last step
    build.launch(130_000, 131_000, 132_000)  # launched after it

    (device,) = measure_device_time(build.read())

    assert (device.window_ns, device.busy_ns, device.steps) == (118_000, 22_000, 2)
    # Until the first launch 1 us between ops and 1 in the op; then 43 and 46 in ops, 3 between; twice 1 us latency.
    assert device.causes == {"operators": 90_000, "uninstrumented": 4_000, "launch latency": 2_000}


def test_idle_at_the_end_of_the_steps_belongs_to_what_the_loop_did(build: TraceBuilder) -> None:
    build.step(0, 0, 60_000)
    build.launch(1_000, 1_000, 2_000)
    build.range("enumerate(DataLoader)#_Iter.__next__", 10_000, 60_000)

    assert causes(build) == {"data loading": 50_000, "uninstrumented": 9_000}


def test_busy_time_has_its_parts_and_their_overlap(build: TraceBuilder) -> None:
    build.work("gemm", 0, 10_000)
    build.work("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 6_000, 16_000, 20)
    build.work("Memcpy HtoD (Pageable -> Device)", 14_000, 19_000, 21, bytes=5_000)
    build.work("Memset (Device)", 19_000, 20_000)

    (device,) = measure_device_time(build.read())

    assert (device.busy_ns, device.idle_ns) == (20_000, 0)
    assert (device.compute_ns, device.communication_ns, device.copy_ns, device.memset_ns) == (
        10_000,
        10_000,
        5_000,
        1_000,
    )
    assert device.overlap_ns == 4_000
    assert device.exposed_communication_ns == 4_000  # 10 to 14 us: neither compute nor a copy
    assert device.exposed_copy_ns == 5_000
    assert (device.copies_ns, device.copy_bytes, device.pageable_ns) == ({"HtoD": 5_000}, {"HtoD": 5_000}, 5_000)
    assert (device.kernels, device.mean_kernel_ns, device.unlinked_share) == (2, 10_000, 1.0)


def test_a_step_has_the_work_that_it_launched_however_late_it_runs(build: TraceBuilder) -> None:
    for number in (0, 1):
        build.step(number, 10_000 * number, 10_000 * (number + 1))
    build.launch(1_000, 1_500, 9_000)
    build.launch(2_000, 9_000, 25_000)  # two steps late
    build.launch(12_000, 25_000, 40_000, NCCL)

    (device,) = measure_device_time(build.read())

    first, second = device.per_step
    assert (first.step, first.wall_ns, first.busy_ns, first.kernels, first.late_ns) == (0, 25_000, 23_500, 2, 15_000)
    assert (second.step, second.wall_ns, second.busy_ns, second.kernels, second.late_ns) == (
        1,
        15_000,
        15_000,
        1,
        20_000,
    )
    assert first.causes == {"uninstrumented": 1_000, "launch latency": 500}
    assert (second.causes, second.exposed_communication_ns) == ({}, 15_000)


def test_the_gaps_of_a_stream_are_separate_from_idle_time_of_the_device(build: TraceBuilder) -> None:
    build.launch(0, 0, 90_000, stream=9)
    build.launch(100, 100, 1_000)
    build.launch(200, 3_000, 4_000)  # queued, 2 us later
    build.launch(300, 34_000, 35_000)  # queued, 30 us later
    build.launch(60_000, 61_000, 62_000)  # late
    build.work("gemm", 61_500, 63_000)  # at the same time on the same stream
    build.work("gemm", 70_000, 71_000)  # its launch is unknown

    (device,) = measure_device_time(build.read())

    assert (device.idle_ns, device.causes) == (0, {})
    seven = device.streams[0]
    assert (seven.stream, seven.count, seven.busy_ns) == (7, 6, 900 + 3_000 + 1_000 + 1_000)
    assert (seven.back_to_back_ns, seven.queued_ns, seven.late_ns, seven.unlinked_ns) == (2_000, 30_000, 26_000, 7_000)


def test_sums_are_true_of_every_real_trace(shared_trace: Trace) -> None:
    devices = measure_device_time(shared_trace)

    assert bool(devices) == bool(shared_trace.device_rows.size)
    for device in devices:
        assert device.busy_ns + device.idle_ns == device.window_ns
        assert sum(device.causes.values()) == device.idle_ns
        assert all(ns > 0 for ns in device.causes.values())
        parts = (device.compute_ns, device.communication_ns, device.copy_ns, device.memset_ns)
        assert max(parts) <= device.busy_ns <= sum(parts)
        assert 0 <= device.overlap_ns <= min(device.compute_ns, device.communication_ns)
        assert device.exposed_communication_ns <= device.communication_ns - device.overlap_ns
        assert device.exposed_copy_ns <= device.copy_ns
        assert sum(device.copies_ns.values()) >= device.copy_ns
        assert sum(gap.duration_ns for gap in device.longest) <= device.idle_ns


def test_measuring_keeps_no_trace_in_memory(build: TraceBuilder) -> None:
    build.launch(0, 0, 1_000)
    trace = build.read()
    measure_device_time(trace)
    alive = weakref.ref(trace)

    del trace
    gc.collect()

    assert alive() is None


def test_a_trace_of_the_cpu_alone_has_no_devices(recorded: Trace) -> None:
    assert measure_device_time(recorded) == ()
