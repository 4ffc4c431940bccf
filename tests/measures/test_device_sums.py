"""Sums that are true of any trace, however odd: crossing events, launches after their work, overlapping streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.measures.device._device_work import device_work
from perfkit.measures.device.communication import measure_communication
from perfkit.measures.device.copies import measure_copies
from perfkit.measures.device.device_time import measure_device_time
from perfkit.measures.device.launches import measure_launches

if TYPE_CHECKING:
    from .conftest import TraceBuilder

WORK = (
    "gemm",
    "ncclDevKernel_AllReduce",
    "Memcpy HtoD (Pageable -> Device)",
    "Memcpy DtoD (Device -> Device)",
    "Memset (Device)",
)
CALLS = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemcpy")
HOST = (
    "aten::mm",
    "enumerate(DataLoader)#_Iter.__next__",
    "train.py(1): f",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
    "user",
)
CATEGORIES = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "overhead", "cuda_sync")

times = st.integers(0, 90_000)
lengths = st.integers(0, 30_000)


class Work(NamedTuple):
    name: str
    start: int
    length: int
    stream: int
    device: int
    call: str | None
    launched: int
    thread: int


work = st.builds(
    Work, st.sampled_from(WORK), times, lengths, st.integers(1, 2), st.integers(0, 1),
    st.none() | st.sampled_from(CALLS), times, st.integers(1, 2),
)  # fmt: skip
host = st.tuples(st.sampled_from(CATEGORIES), st.sampled_from(HOST), times, lengths, st.integers(1, 2))


def fill(build: TraceBuilder, works: list[Work], hosts: list[tuple[str, str, int, int, int]], steps: list[int]) -> None:
    for one in works:
        build.correlation += 1
        args = {"device": one.device, "stream": one.stream, "bytes": 7}
        if one.call is not None:
            args["correlation"] = build.correlation
            launched = one.launched
            build.add("cuda_runtime", one.call, launched, launched + 100, one.thread, correlation=build.correlation)
        kind = "gpu_memcpy" if "Memcpy" in one.name else "gpu_memset" if "Memset" in one.name else "kernel"
        build.add(kind, one.name, one.start, one.start + one.length, one.stream, one.device, **args)
    for category, name, start, length, thread in hosts:
        build.add(category, name, start, start + length, thread, device=0, stream=1)
    for number, (start, end) in enumerate(pairwise(sorted(set(steps)))):
        build.step(number, start, end)


traces = given(
    works=st.lists(work, min_size=1, max_size=12),
    hosts=st.lists(host, max_size=10),
    steps=st.lists(times, max_size=4),
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@traces
def test_the_times_of_a_device_and_of_its_steps_add_up(
    new_build: Callable[[], TraceBuilder],
    works: list[Work],
    hosts: list[tuple[str, str, int, int, int]],
    steps: list[int],
) -> None:
    build = new_build()
    fill(build, works, hosts, steps)

    for device in measure_device_time(build.read()):
        assert device.busy_ns + device.idle_ns == device.window_ns
        assert sum(device.causes.values()) == device.idle_ns
        parts = (device.compute_ns, device.communication_ns, device.copy_ns, device.memset_ns)
        assert max(parts) <= device.busy_ns <= sum(parts)
        hidden = device.communication_ns - device.exposed_communication_ns
        assert device.overlap_ns <= hidden <= device.overlap_ns + device.copy_ns
        assert device.exposed_copy_ns <= device.copy_ns
        if device.per_step:
            for field in ("busy_ns", "idle_ns", "compute_ns", "communication_ns", "copy_ns", "exposed_copy_ns"):
                assert sum(getattr(step, field) for step in device.per_step) == getattr(device, field)
            assert sum(step.wall_ns for step in device.per_step) == device.window_ns
            assert all(step.busy_ns + step.idle_ns == step.wall_ns for step in device.per_step)
            assert all(sum(step.causes.values()) == step.idle_ns for step in device.per_step)
            assert sum((Counter(step.causes) for step in device.per_step), Counter()) == Counter(device.causes)
            assert sum(step.kernels for step in device.per_step) <= device.kernels


@quick
@traces
def test_streams_make_up_their_device_and_gaps_lie_apart_in_the_window(
    new_build: Callable[[], TraceBuilder],
    works: list[Work],
    hosts: list[tuple[str, str, int, int, int]],
    steps: list[int],
) -> None:
    build = new_build()
    fill(build, works, hosts, steps)
    trace = build.read()

    for device, of in zip(measure_device_time(trace), device_work(trace), strict=True):
        streams = device.streams
        longest = max((stream.busy_ns for stream in streams), default=0)
        assert longest <= device.busy_ns <= sum(stream.busy_ns for stream in streams)
        assert sum(stream.count for stream in streams) == of.rows.size
        for stream in streams:
            gaps = stream.late_ns + stream.back_to_back_ns + stream.queued_ns + stream.unlinked_ns
            assert stream.busy_ns + gaps <= device.window_ns
        gaps_found = sorted((gap.start_ns, gap.start_ns + gap.duration_ns) for gap in device.longest)
        assert all(end <= start for (_, end), (start, _) in pairwise(gaps_found))
        assert all(of.low <= start < end <= of.high for start, end in gaps_found)
        assert [gap.duration_ns for gap in device.longest] == sorted(
            (g.duration_ns for g in device.longest), reverse=True
        )


@quick
@traces
def test_parts_of_launches_copies_and_communication_never_exceed_the_whole(
    new_build: Callable[[], TraceBuilder],
    works: list[Work],
    hosts: list[tuple[str, str, int, int, int]],
    steps: list[int],
) -> None:
    build = new_build()
    fill(build, works, hosts, steps)
    trace = build.read()

    devices = {device.device: device for device in measure_device_time(trace)}
    for one in measure_launches(trace):
        assert 0 <= one.starved_ns <= devices[one.device].idle_ns
        assert sum(one.per_step) <= one.count <= one.work
        assert max(one.drained, one.short_kernels) <= one.work
        assert one.depth.mean == pytest.approx(sum(one.depth_over_time) / len(one.depth_over_time), abs=0.01)
        assert 0 <= one.depth.p50 <= one.depth.p90 <= one.depth.p99 <= one.depth.max <= one.count
    for copy in measure_copies(trace):
        assert 0 <= copy.overlap_ns <= copy.total_ns
        assert (copy.blocking or 0) <= copy.count
        assert (copy.blocked_ns or 0) >= 0
    for found in measure_communication(trace):
        assert found.overlap_ns + found.exposed_ns <= found.total_ns <= sum(one.total_ns for one in found.collectives)
        assert found.exposed_ns <= sum(one.exposed_ns for one in found.collectives)
        assert found.total_ns == devices[found.device].communication_ns
