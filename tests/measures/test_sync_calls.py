"""Calls in which the host waited for the device, by the op and range around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.measures.host.sync_calls import measure_sync_calls

if TYPE_CHECKING:
    from .conftest import TraceBuilder


def test_a_blocking_call_has_the_outermost_op_and_the_range_around_it(build: TraceBuilder) -> None:
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
