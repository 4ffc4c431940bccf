"""What perfkit holds: its own containers and objects, and nothing of the program's."""

from __future__ import annotations

import sys

import torch

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.watchers.self_memory import held_bytes


def test_what_a_container_holds_counts_once() -> None:
    text = "x" * 1000

    assert held_bytes([text, text]) == sys.getsizeof([text, text]) + sys.getsizeof(text)


def test_the_programs_objects_count_without_what_they_hold() -> None:
    model = torch.nn.Linear(1000, 1000)
    model.extra = ["x" * 100_000]

    held = held_bytes({"model": model})
    assert held is not None
    assert held < 2_000


def test_what_a_clock_has_written_down_counts() -> None:
    clock = StepClock(lambda closed: None, batch=10_000)
    clock.start()
    clock.close()
    empty = held_bytes(clock)
    for _ in range(1000):
        clock.close()
    full = held_bytes(clock)

    assert empty is not None
    assert full is not None
    # A code and a time of 8 and 32 bytes, and two places in a list.
    assert 1000 * 40 < full - empty < 1000 * 100


def test_more_than_can_be_looked_at_is_not_known() -> None:
    assert held_bytes([str(number) for number in range(300_000)]) is None
