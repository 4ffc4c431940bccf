"""The memory that perfkit uses: its own containers and objects, and nothing of the program's."""

from __future__ import annotations

import sys

import torch

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.watchers.self_memory import deep_size


def test_the_parts_of_a_container_count_once() -> None:
    text = "x" * 1000

    assert deep_size([text, text]) == sys.getsizeof([text, text]) + sys.getsizeof(text)


def test_the_programs_objects_count_without_their_parts() -> None:
    model = torch.nn.Linear(1000, 1000)
    model.extra = ["x" * 100_000]

    size = deep_size({"model": model})
    assert size is not None
    assert size < 2_000


def test_the_times_in_a_clock_count() -> None:
    clock = StepClock(lambda closed: None, batch=10_000)
    clock.start()
    clock.close()
    empty = deep_size(clock)
    for _ in range(1000):
        clock.close()
    full = deep_size(clock)

    assert empty is not None
    assert full is not None
    # A code and a time of 8 and 32 bytes, and two places in a list.
    assert 1000 * 40 < full - empty < 1000 * 100


def test_the_size_of_too_many_objects_is_unknown() -> None:
    assert deep_size([str(number) for number in range(300_000)]) is None
