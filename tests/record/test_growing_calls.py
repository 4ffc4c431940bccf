"""Texts that are written without a cache, seen by the calls of the model, wherever in the run they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import perfkit
from perfkit.record.watchers import growing_calls
from perfkit.record.watchers.growing_calls import GrowingCalls
from perfkit.run.records import Lines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that a call of the model advances by 1 ms per position."""
    now = [0]
    monkeypatch.setattr(growing_calls.time, "perf_counter_ns", lambda: now[0])
    return now


def write(watch: GrowingCalls, clock: list[int], lengths: range, samples: int = 2, module: Any = None) -> Any:
    module = module or torch.nn.Linear(1, 1)
    for length in lengths:
        watch.add(module, torch.zeros(samples, length))
        clock[0] += 1_000_000 * length
    return module


def watching(phase: Any, step: Any = lambda: 7) -> GrowingCalls:
    return GrowingCalls(lambda: phase, step)


def test_calls_that_grow_by_one_position_are_counted_at_the_line_that_makes_them(clock: list[int]) -> None:
    watch = watching("validation")
    write(watch, clock, range(5, 25))

    [row] = watch.rows(steps=10)

    assert (row.module, row.phase, row.calls) == ("Linear", "validation", 19)
    assert (row.file, row.function) == (__file__, "write")
    # The last call has no next one to end it. Of each of the others all positions but one were known: 4 to 22 ms.
    assert row.host_ns == pytest.approx(1_000_000 * sum(range(4, 23)) / 10)


def test_two_texts_are_one_line_and_few_calls_are_none(clock: list[int]) -> None:
    watch = watching("other")
    model = write(watch, clock, range(5, 25))
    write(watch, clock, range(5, 25), module=model)
    assert [row.calls for row in watch.rows(1)] == [38]

    few = watching("other")
    write(few, clock, range(5, 13))
    write(few, clock, range(5, 13))
    assert few.rows(1) == ()


def test_batches_of_other_lengths_and_calls_with_a_cache_are_not_growing(clock: list[int]) -> None:
    watch = watching("forward")
    model = torch.nn.Linear(1, 1)
    for length in (9, 12, 14, 30, 31, 8, 9, 11, 12, 14, 20, 21):
        write(watch, clock, range(length, length + 1), module=model)
    for _ in range(40):
        write(watch, clock, range(1, 2), module=model)
    for batch in range(2, 40):  # the batch grows, not the text
        watch.add(model, torch.zeros(batch, 7))
    for length in range(1, 40):
        watch.add(model, torch.zeros(length))

    assert watch.rows(1) == ()


def test_training_on_longer_and_longer_inputs_is_not_writing(clock: list[int]) -> None:
    steps = iter(range(100))
    watch = watching("forward", lambda: next(steps))
    write(watch, clock, range(5, 25))

    assert watch.rows(1) == ()


class Translator(torch.nn.Module):
    """An encoder's model, which gets what it has read in an object of its own, and a mask that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(9, 4)

    def forward(self, encoder_outputs: object, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor) -> Any:
        return self.words(decoder_input_ids)


def test_what_grows_in_a_model_with_a_decoder_is_the_decoders_input(tmp_path: Path) -> None:
    model, mask = Translator(), torch.ones(2, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with perfkit.profile(tmp_path / "run", quiet=True) as profiler:
        for _ in profiler.steps(range(4)):
            model(object(), mask, torch.ones(2, 5).long()).sum().backward()
            optimizer.step()
            with torch.no_grad():
                for length in range(2, 30):
                    written = torch.ones(2, length).long()
                    model(encoder_outputs=object(), attention_mask=mask, decoder_input_ids=written)

    lines = msgspec.json.decode((tmp_path / "run" / "rank-0" / "lines.json").read_bytes(), type=Lines)
    [row] = lines.regrown_inputs
    assert row.module == "Translator"
    assert row.calls >= 3 * 27
