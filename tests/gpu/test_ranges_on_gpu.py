"""Device time of ranges on a real device: right, late, and without a sync."""

from __future__ import annotations

import time

import pytest
import torch

import perfkit
from perfkit.ranges import start_recorder


def multiply(x: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.mm(x, x)


@pytest.mark.semantics
def test_device_time_is_that_of_the_kernels_and_entering_does_not_wait() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    multiply(x, 3)
    torch.cuda.synchronize()
    recorder = start_recorder()
    begin = time.perf_counter_ns()
    for _ in range(3):
        with perfkit.range("device timed", device_time=True):
            multiply(x, 20)
    issued_ns = time.perf_counter_ns() - begin
    torch.cuda.synchronize()
    done_ns = time.perf_counter_ns() - begin
    recorder.stop()
    (row,) = recorder.rows()

    assert row.device_count == 3
    assert row.device_ns is not None
    assert 0.5 * done_ns < row.device_ns <= done_ns
    assert row.total_ns < row.device_ns
    assert issued_ns < 0.5 * done_ns


@pytest.mark.semantics
def test_device_time_makes_no_sync_that_torch_can_see() -> None:
    x = torch.randn(512, 512, device="cuda")
    recorder = start_recorder()
    with perfkit.detect_syncs(mode="cuda") as syncs:
        for _ in range(50):
            with perfkit.range("watched", device_time=True):
                multiply(x, 2)
    recorder.stop()

    syncs.assert_max(0)


def capture_between_ranges() -> tuple[torch.Tensor, torch.Tensor]:
    """The product that a graph made inside and around timed ranges replays, and the one without a graph."""
    x = torch.randn(512, 512, device="cuda")
    x @ x  # cuBLAS refuses to start inside a capture
    graph = torch.cuda.CUDAGraph()
    captured = perfkit.range("captured", device_time=True)
    with perfkit.range("around", device_time=True), torch.cuda.graph(graph), captured:
        y = x @ x
    with perfkit.range("replayed", device_time=True):
        graph.replay()
    torch.cuda.synchronize()
    return y, x @ x


@pytest.mark.semantics
def test_a_cuda_graph_is_captured_inside_and_around_timed_ranges() -> None:
    recorder = start_recorder()
    capture_between_ranges()
    recorder.stop()
    rows = {row.name: row.device_count for row in recorder.rows()}

    assert rows["captured"] is None
    assert rows["replayed"] == 1


@pytest.mark.real
def test_a_cuda_graph_captured_between_timed_ranges_computes_what_it_would_without_them() -> None:
    recorder = start_recorder()
    replayed, expected = capture_between_ranges()
    recorder.stop()

    assert torch.allclose(replayed, expected)
