"""Latency on a GPU: timed on the device, launches included, and the user's peak of its memory is not reset."""

from __future__ import annotations

import pytest
import torch

import perfkit


def network() -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()


@pytest.mark.semantics
def test_latency_is_the_devices_and_not_the_time_to_launch() -> None:
    model, example = network(), torch.randn(1, 2048)

    (large,) = perfkit.measure_latency(model, example, (16_384,), budget_s=10).batches

    assert large.p50_ns is not None
    assert large.host_ns is not None
    assert large.host_ns < large.p50_ns / 2


@pytest.mark.semantics
def test_small_batches_cost_the_same_and_large_ones_grow_with_the_batch() -> None:
    found = perfkit.measure_latency(network(), torch.randn(1, 2048), (1, 2, 16_384, 65_536), budget_s=20)

    one, two, large, larger = (batch.p50_ns or 0 for batch in found.batches)
    assert two < 1.5 * one
    assert 3 < larger / large < 5
    assert found.device == "cuda:0"
    assert found.device_name == torch.cuda.get_device_name(0)


@pytest.mark.semantics
def test_a_function_that_moves_its_inputs_itself_is_timed_on_the_device() -> None:
    model = network()

    found = perfkit.measure_latency(lambda x: model(x.cuda()), torch.randn(1, 2048), (8192,), budget_s=10)

    assert found.device == "cuda:0"
    assert found.batches[0].host_ns is not None


@pytest.mark.semantics
def test_the_peak_of_a_batch_size_is_told_where_it_rose_and_the_users_peak_stays() -> None:
    model = network()
    big = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    del big
    before = torch.cuda.max_memory_allocated()

    small, large = perfkit.measure_latency(model, torch.randn(1, 2048), (1, 262_144), budget_s=10).batches

    assert small.device_peak_bytes is None
    assert large.device_peak_bytes is not None
    assert large.device_peak_bytes > before
    assert torch.cuda.max_memory_allocated() >= before


@pytest.mark.semantics
def test_a_batch_that_does_not_fit_is_told_and_the_rest_is_measured() -> None:
    found = perfkit.measure_latency(network(), lambda size: torch.empty(size, 2048, device="cuda"), (1, 10**9))

    assert found.batches[0].problem is None
    assert (found.batches[1].problem or "").startswith("out of memory")


@pytest.mark.semantics
def test_random_numbers_of_the_device_go_on_as_before() -> None:
    model = torch.nn.Linear(4, 4).cuda()
    state = torch.cuda.get_rng_state()

    perfkit.measure_latency(lambda x: model(x) + torch.rand_like(x), torch.zeros(1, 4, device="cuda"), (1,), budget_s=1)

    assert torch.equal(torch.cuda.get_rng_state(), state)
