"""The size of batches, and how much of them is padding."""

from __future__ import annotations

import torch

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.hooks.batches import BatchWatch, first_tensor


def test_a_batchs_size_is_that_of_its_first_tensor() -> None:
    x = torch.zeros(4, 6)

    assert first_tensor({"input": (x, torch.zeros(4))}) is x
    assert first_tensor(["text", x]) is None
    clock = StepClock(lambda closed: None)
    clock.step_num = 7
    watch = BatchWatch(clock)
    for batch in ((x, 1), (x, 2), "text"):
        watch.add(batch)
    assert watch.elements == {7: 48}


def test_calls_of_models_are_counted_by_step_with_the_elements_of_their_inputs() -> None:
    clock = StepClock(lambda closed: None)
    watch = BatchWatch(clock)
    x = torch.zeros(4, 6)
    for clock.step_num, inputs in ((7, ((x, 1), {})), (7, ((), {"input_ids": x})), (8, (("text",), {}))):
        watch.add_call(inputs)

    assert watch.calls == {7: (2, 48), 8: (1, 0)}


def test_the_input_of_a_model_is_looked_at_for_padding_where_no_loader_returns_batches() -> None:
    clock = StepClock(lambda closed: None)
    watch = BatchWatch(clock)
    rows = torch.tensor([[5, 6, 7, 8], [5, 0, 0, 0], [5, 6, 0, 0]])

    def called(step: int) -> None:
        clock.step_num = step
        # Nothing else keeps it: where calls are the steps, the loop has its next input by then.
        watch.add_call(((rows.clone(),), {}))
        watch.count_padding()

    called(3)
    assert watch.padding is not None
    assert (watch.padding.elements, watch.padding.padded) == (12, 5)
    watch.add(rows)
    called(3)
    assert watch.padding.elements == 24, "the batch counts, and not what the model got of it"


def test_padding_is_counted_in_batches_of_whole_numbers() -> None:
    watch = BatchWatch(StepClock(lambda closed: None))
    tokens = torch.tensor([[5, 6, 7, 8], [5, 0, 0, 0], [5, 6, 0, 0]])
    full = torch.arange(12).reshape(3, 4)
    for batch in (tokens, full, torch.zeros(3, 4)):
        watch.add(batch)
        watch.count_padding()

    assert watch.padding is not None
    assert (watch.padding.batches, watch.padding.elements, watch.padding.padded) == (2, 24, 5)
