"""Tensors of the program that perfkit looked at can still be resized, as FSDP does with its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfkit.record import program_values
from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks.batches import BatchWatch
from perfkit.record.samplers import constant_calls


@pytest.mark.parametrize("sample_of", [program_values.sample_of, constant_calls._sample_of])
@pytest.mark.parametrize("elements", [10, 100_000])
def test_a_tensor_whose_elements_were_sampled(sample_of: Callable[[Any], Any], elements: int) -> None:
    tensor = torch.ones(elements)

    assert sample_of(tensor) is not None
    assert tensor.untyped_storage().resizable()


def test_a_batch_whose_padding_was_counted() -> None:
    watch = BatchWatch(StepClock(lambda closed: None))
    tokens = torch.tensor([[5, 6, 7, 8], [5, 0, 0, 0]])

    watch.add(tokens)
    watch.count_padding()

    assert watch.padding is not None
    assert tokens.untyped_storage().resizable()
