"""Calls of a model whose input has one position more than that of the call before."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.steps.growing_inputs import measure_growing_inputs
from perfkit.run.records import Phases, Step

US = 1_000


def call(step: int, elements: int, us: float, **more: Any) -> Step:
    ns = round(us * US)
    given = {"step": step, "start_ns": step, "wall_ns": 3 * ns, "thread_ns": ns, "phases_ns": Phases(other=3 * ns)}
    return Step(**{"mode": "predict", "model_calls": 1, "input_elements": elements, **given, **more})


def texts(count: int, *, batch: int = 4, first: int = 32, new: int = 50, us: float = 100, **more: Any) -> list[Step]:
    """Calls for ``count`` texts of ``batch`` samples, each of 200 us and ``us`` per position."""
    lengths = [first + place for _ in range(count) for place in range(new)]
    return [call(step, batch * length, 200 + us * length, **more) for step, length in enumerate(lengths)]


def test_what_all_positions_but_one_take_is_the_share_of_a_call_that_follows_its_length() -> None:
    found = measure_growing_inputs(texts(6))

    assert found is not None
    assert found.calls > 0.95 * 300
    assert found.share > 0.95
    assert found.positions == pytest.approx(56.5, abs=1)
    assert found.by_position == pytest.approx(55.5 * 100 / (200 + 56.5 * 100), rel=0.02)


def test_calls_that_another_program_disturbed_change_nothing() -> None:
    calls = texts(6)
    calls[10] = call(10, calls[10].input_elements or 0, 90_000)

    found = measure_growing_inputs(calls)

    assert found is not None
    assert found.by_position == pytest.approx(55.5 * 100 / (200 + 56.5 * 100), rel=0.02)


def test_calls_whose_time_does_not_follow_the_length_have_no_share_of_it() -> None:
    found = measure_growing_inputs(texts(6, us=0))

    assert found is not None
    assert found.by_position == 0


@pytest.mark.parametrize(
    "calls",
    [
        texts(6, mode="train"),
        texts(6, model_calls=2),
        texts(40, new=6),
        # With a cache: the prompt, then one position per call.
        [call(step, 4 * (32 if step % 50 == 0 else 1), 500) for step in range(300)],
        # Requests of any length, and those that are sorted by it.
        [call(step, 4 * (20 + 37 * step % 41), 500) for step in range(300)],
        [call(step, 30 + step * step, 500) for step in range(300)],
        # 7 more elements each time, of which the first had 100: no positions.
        [call(step, 100 + 7 * step, 500) for step in range(300)],
        [],
    ],
    ids=["training", "several calls", "short", "cached", "mixed", "sorted", "other growth", "none"],
)
def test_other_calls_are_no_growing_inputs(calls: list[Step]) -> None:
    assert measure_growing_inputs(calls) is None
