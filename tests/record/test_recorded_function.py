"""`@perfkit.profile()` records each call of the function that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import perfkit
from perfkit.errors import UsageError
from perfkit.run.reading import read_run


def _train(steps: int) -> int:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in perfkit.steps([torch.ones(2, 4)] * steps):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return steps


def test_each_call_is_recorded_and_the_second_continues_the_run(tmp_path: Path) -> None:
    train = perfkit.profile(tmp_path / "run", quiet=True)(_train)

    assert (train(6), train(5), train.__name__) == (6, 5, "_train")
    prof = train.profile  # type: ignore[attr-defined]
    assert prof.diagnosis is not None
    assert [row.step for row in read_run(prof.folder).ranks[0].steps] == list(range(11))


def test_a_function_that_calls_itself_is_one_recording(tmp_path: Path) -> None:
    @perfkit.profile(tmp_path / "run", quiet=True)
    def train(depth: int) -> int:
        if depth:
            train(depth - 1)
        return _train(3)

    train(1)

    assert len(read_run(tmp_path / "run").ranks[0].steps) == 6


def test_an_error_passes_through_and_what_was_recorded_is_kept(tmp_path: Path) -> None:
    @perfkit.profile(tmp_path / "run", quiet=True)
    def train() -> None:
        _train(4)
        raise KeyError("the program's")

    with pytest.raises(KeyError, match="the program's"):
        train()

    assert len(read_run(tmp_path / "run").ranks[0].steps) == 4


def _generator() -> Iterator[int]:
    yield 1


async def _coroutine() -> None: ...


@pytest.mark.parametrize("function", [_generator, _coroutine, torch.nn.Linear, "train"])
def test_what_other_code_interrupts_is_refused_with_the_with_block(function: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"`with perfkit.profile\(\):` around the loop"):
        perfkit.profile(tmp_path / "run")(function)


def test_a_decorator_without_parentheses_is_told_to_have_some() -> None:
    profile: Callable[..., Any] = perfkit.profile
    with pytest.raises(UsageError, match=r"@perfkit\.profile\(\), with parentheses"):
        profile(_train)
