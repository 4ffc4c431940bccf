"""When the tensors of a program are looked at; the clock is a fake one."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit.record.watchers import tensor_leaks
from perfkit.record.watchers.tensor_leaks import TensorWatch


@pytest.mark.parametrize(("step_ms", "look_ms"), [(0.1, 70), (1, 30), (100, 70), (1_000, 400)])
def test_looks_take_a_two_hundredth_of_the_time_beyond_the_first_few(
    clock: Any, monkeypatch: pytest.MonkeyPatch, step_ms: float, look_ms: float
) -> None:
    looked: list[int] = []

    def alive() -> dict[Any, Any]:
        clock.pass_ms(look_ms)
        return {}

    monkeypatch.setattr(tensor_leaks, "_alive", alive)
    monkeypatch.setattr(tensor_leaks, "time", SimpleNamespace(thread_time_ns=clock))
    watch = TensorWatch()
    for step in range(1, 50_000):
        clock.pass_ms(step_ms)
        if watch.look(step):
            looked.append(step)

    assert looked
    assert all(after >= 2 * before for before, after in pairwise(looked))
    assert len(looked) * look_ms < 150 + 2 * look_ms + 50_000 * step_ms / 200
    assert looked[0] * step_ms >= 200
