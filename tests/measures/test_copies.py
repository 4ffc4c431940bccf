from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from perfkit.measures.device.copies import measure_copies
from perfkit.measures.results.device import CopyTime
from perfkit.trace import Trace

if TYPE_CHECKING:
    from .conftest import TraceBuilder

PINNED = "Memcpy HtoD (Pinned -> Device)"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def only(build: TraceBuilder) -> CopyTime:
    (found,) = measure_copies(build.read())
    return found


def test_copies_are_by_direction_and_memory_with_their_bandwidth(build: TraceBuilder) -> None:
    build.step(0, 0, 50_000)
    build.step(1, 50_000, 100_000)
    build.op("aten::mm", 60_000, 61_000)
    build.launch(0, 1_000, 3_000, PINNED, bytes=4_000)
    build.launch(200, 3_000, 4_000, PINNED, bytes=8_000)
    build.launch(400, 5_000, 5_500, "Memset (Device)", bytes=100)

    copy, memset = measure_copies(build.read())

    assert (copy.kind, copy.direction, copy.source, copy.target) == ("copy", "HtoD", "Pinned", "Device")
    assert (copy.count, copy.steps, copy.bytes, copy.largest_bytes, copy.total_ns) == (2, 2, 12_000, 8_000, 3_000)
    assert copy.bytes_per_s == pytest.approx(12_000 / 3e-6)
    assert (memset.kind, memset.direction, memset.source, memset.target) == ("memset", None, None, "Device")


def test_copies_during_compute_are_overlapped(build: TraceBuilder) -> None:
    build.launch(0, 1_000, 5_000, PINNED, stream=9)
    build.launch(200, 4_000, 9_000)
    build.work("ncclDevKernel_AllReduce", 1_000, 3_000, 20)  # communication is no compute

    assert only(build).overlap_ns == 1_000


def test_a_call_that_lasts_through_its_copy_blocked_the_host(build: TraceBuilder) -> None:
    build.add("cuda_runtime", "cudaMemcpyAsync", 0, 9_000, correlation=5)
    build.work(PAGEABLE, 1_000, 10_000, correlation=5)
    build.launch(10_000, 11_000, 12_000, PAGEABLE)  # through a staging buffer: the host went on at once

    assert (only(build).count, only(build).blocking, only(build).blocked_ns) == (2, 1, 9_000)


def test_a_sync_that_the_copying_op_made_next_blocked_the_host(build: TraceBuilder) -> None:
    for at in (0, 100_000):
        build.op("aten::copy_", at, at + 20_000)
        build.launch(at + 1_000, at + 2_000, at + 15_000, PINNED)
    build.call("cudaStreamSynchronize", 1_200, 16_000)
    build.call("cudaStreamSynchronize", 130_000, 140_000)  # of somebody else, later

    assert (only(build).blocking, only(build).blocked_ns) == (1, 15_000)


def test_whether_the_host_waited_is_unknown_without_launches(build: TraceBuilder) -> None:
    build.work("Memcpy DtoH (Device -> Pageable)", 0, 1_000)

    assert (only(build).blocking, only(build).blocked_ns, only(build).bytes) == (None, None, None)


def test_every_read_into_pageable_memory_of_a_real_training_blocked(shared: Callable[[str], Trace]) -> None:
    found = measure_copies(shared("v100-2ranks-training.json.gz"))

    ways = {(one.direction, one.source, one.target): one for one in found if one.kind == "copy"}
    reads = ways["DtoH", "Device", "Pageable"]
    assert (reads.count, reads.blocking) == (60, 60)
    batches = ways["HtoD", "Pinned", "Device"]
    assert (batches.count, batches.blocking) == (151, 0)
