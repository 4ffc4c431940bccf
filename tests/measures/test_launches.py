from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perfkit.measures.device.launches import POINTS, measure_launches
from perfkit.measures.results.device import Launches
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def measured(build: TraceBuilder) -> Launches:
    (launches,) = measure_launches(build.read())
    return launches


def test_launches_count_to_the_step_that_made_them_and_a_graph_is_one(build: TraceBuilder) -> None:
    build.step(0, 0, 10_000)
    build.step(1, 10_000, 20_000)
    build.launch(1_000, 15_000, 16_000)  # runs in the second
    build.launch(12_000, 16_000, 17_000)
    build.launch(13_000, 17_000, 18_000, api="cudaGraphLaunch")
    build.work("gemm", 18_000, 19_000, correlation=build.correlation)

    found = measured(build)

    assert (found.steps, found.per_step, found.count, found.work, found.kernels) == (2, (1, 2), 3, 4, 4)


def test_latency_reaches_from_the_end_of_the_call_to_the_start_of_the_work(build: TraceBuilder) -> None:
    for i, delay in enumerate((100, 50, 1_100, 10_100)):  # 50: the work began before its call returned
        build.launch(100_000 * i, 100_000 * i + delay, 100_000 * i + delay + 10)

    latency = measured(build).latency_ns

    assert (latency.p50, latency.max, latency.mean) == (500, 10_000, 2_750)


def test_the_queue_is_as_deep_as_launches_wait_over_time(build: TraceBuilder) -> None:
    build.launch(0, 0, 1_000)
    build.launch(200, 1_000, 9_000)
    build.launch(1_000, 9_000, 10_000)
    build.launch(5_000, 10_000, 20_000)

    found = measured(build)

    # 1 waits from 200 to 1,000, 1 to 5,000, 2 to 9,000, 1 to 10,000, none to 20,000.
    assert found.depth.mean == pytest.approx((800 + 4_000 + 2 * 4_000 + 1_000) / 20_000)
    assert (found.depth.p50, found.depth.p90, found.depth.max) == (0, 2, 2)
    assert len(found.depth_over_time) == POINTS
    assert found.depth_over_time[20:30] == (1.0,) * 5 + (2.0,) * 5  # from 4,000 to 6,000 in parts of 200


def test_a_launch_into_a_drained_device_is_what_the_device_waited_for(build: TraceBuilder) -> None:
    build.launch(0, 500, 1_000)
    build.launch(600, 1_200, 2_000)  # queued
    build.launch(5_000, 5_300, 6_000)  # 3,000 after the device had ended all it had
    build.launch(6_500, 7_000, 8_000)  # 500 after

    found = measured(build)

    assert (found.drained, found.starved_ns) == (2, 3_500)
    assert found.bound_share == 0.5


def test_kernels_shorter_than_their_launch_are_counted_and_copies_are_not(build: TraceBuilder) -> None:
    build.launch(0, 1_000, 1_099)  # a call takes 100
    build.launch(200, 2_000, 2_100)
    build.launch(400, 3_000, 3_010, "Memcpy DtoD (Device -> Device)", api="cudaMemcpyAsync")

    found = measured(build)

    assert (found.kernels, found.short_kernels, found.short_share) == (2, 1, 0.5)


def test_the_device_does_not_wait_for_work_without_a_length(build: TraceBuilder) -> None:
    for at, length in ((0, 500), (2_000, 0), (3_000, 500)):  # as in traces of whole us
        build.launch(at, at, at + length)

    found = measured(build)

    assert (found.count, found.drained, found.starved_ns) == (3, 2, 2_500)


def test_work_without_launches_has_no_launch_figures(build: TraceBuilder) -> None:
    build.work("gemm", 0, 1_000)

    assert measure_launches(build.read()) == ()


def test_launches_of_real_traces_are_the_linked_work(shared_trace: Trace) -> None:
    for found in measure_launches(shared_trace):
        assert 0 < found.count <= found.work
        assert sum(found.per_step) <= found.count
        assert 0 <= found.bound_share <= 1
        assert found.latency_ns.p50 <= found.latency_ns.p99 <= found.latency_ns.max
