"""Gradients averaged in every backward of an update are seen; those of the last backward only are as they should be."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.ranks.repeated_reductions import measure_repeated_reductions


def update(build: Any, number: int, reduces: list[bool], optimizers: int = 1) -> None:
    """A step of 10 us per piece, each with a forward and, where it reduces, two all-reduces that run for 3 us each."""
    start = 100_000 * number
    build.step(number, start, start + 10_000 * len(reduces) + 2_000)
    for piece, reduced in enumerate(reduces):
        at = start + 10_000 * piece
        build.range("DistributedDataParallel.forward", at + 100, at + 1_000)
        build.op("aten::mm", at + 2_000, at + 5_000)
        for bucket in range(2 if reduced else 0):
            begin = at + 3_000 + 3_500 * bucket
            build.op("c10d::allreduce_", begin, begin + 100)
            build.range("gloo:all_reduce", begin, begin + 3_000, tid=2)
    for optimizer in range(optimizers):
        build.range("Optimizer.step#SGD.step", start + 10_000 * len(reduces) + 500 * optimizer, start + 41_400)


def test_averages_in_each_backward_cost_all_but_those_of_the_last(build: Any) -> None:
    for number in range(3):
        update(build, number, [True] * 4)
    found = measure_repeated_reductions(build.read())

    assert found is not None
    assert (found.backwards, found.count) == (4, 8)
    # Per backward 6 us run, 2 of them next to an op.
    assert found.running_share == pytest.approx(0.75 * 24 / 42)
    assert found.waited_share == pytest.approx(0.75 * 16 / 42)


@pytest.mark.parametrize("reduces", [[False, False, True], [True], [False, True, True], []])
def test_the_last_backward_alone_and_other_numbers_are_no_repetition(build: Any, reduces: list[bool]) -> None:
    for number in range(3):
        update(build, number, reduces)

    assert measure_repeated_reductions(build.read()) is None


def test_a_step_with_an_update_per_backward_repeats_nothing(build: Any) -> None:
    for number in range(3):
        update(build, number, [True, True], optimizers=2)

    assert measure_repeated_reductions(build.read()) is None
