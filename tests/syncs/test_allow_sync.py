"""Syncs that are meant pass: by a block, a decorator, or a comment on the line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

import perfkit
from perfkit.syncs import detect_syncs


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.ones(3)


def test_a_block_allows_its_syncs_and_the_result_notes_them(weight: torch.Tensor) -> None:
    with detect_syncs("dry", device_of=weight, on_sync="raise") as syncs:
        with perfkit.allow_sync("epoch metrics"), perfkit.allow_sync("inner"):
            weight.sum().item()
        with perfkit.allow_sync("epoch metrics"):
            weight.sum().item()

    assert syncs.events == ()
    assert syncs.allowed == {"inner": 1, "epoch metrics": 1}
    assert "allowed syncs, not counted: 1 for 'inner', 1 for 'epoch metrics'" in repr(syncs)
    syncs.assert_max(0)


def test_after_the_block_syncs_count_again_also_after_an_error(weight: torch.Tensor) -> None:
    with detect_syncs("dry", device_of=weight) as syncs:
        with pytest.raises(ValueError, match="mine"), perfkit.allow_sync("metrics"):
            raise ValueError("mine")
        weight.sum().item()

    assert len(syncs.events) == 1


def test_a_decorated_function_is_allowed_and_its_caller_is_not(weight: torch.Tensor) -> None:
    @perfkit.allow_sync("checkpoint")
    def save(times: int) -> float:
        return save(times - 1) if times else weight.sum().item()

    with detect_syncs("dry", device_of=weight) as syncs:
        assert save(2) == 3.0
        weight.sum().item()

    assert syncs.allowed == {"checkpoint": 1}
    assert len(syncs.events) == 1


def test_a_decorated_coroutine_is_allowed_while_it_runs_and_others_are_not(weight: torch.Tensor) -> None:
    @perfkit.allow_sync("fetch")
    async def fetch() -> float:
        await asyncio.sleep(0)
        return weight.sum().item()

    async def other() -> float:
        return weight.sum().item()

    async def both() -> None:
        await asyncio.gather(fetch(), other())

    with detect_syncs("dry", device_of=weight) as syncs:
        asyncio.run(both())

    assert syncs.allowed == {"fetch": 1}
    assert [event.function.rsplit(".", 1)[-1] for event in syncs.events] == ["other"]


COMMENTS = """\
a = w.sum().item()  # perfkit: allow-sync[logged every 100 steps]
b = max(
    w.sum().item(),
    0.0,  # perfkit: allow-sync[inside a longer statement]
)
if w.any():  # perfkit: allow-sync[the head of a block]
    c = w.sum().item()
d = w.sum().item()
"""


def test_a_comment_allows_its_statement_and_only_that(weight: torch.Tensor, run_program: Callable[..., Any]) -> None:
    with detect_syncs("dry", device_of=weight) as syncs:
        run_program(COMMENTS, w=weight)

    assert sorted(event.line for event in syncs.events) == [7, 8]
    assert set(syncs.allowed) == {"logged every 100 steps", "inside a longer statement", "the head of a block"}


def test_a_comment_without_a_reason_allows_nothing_and_causes_a_warning(
    weight: torch.Tensor, run_program: Callable[..., Any]
) -> None:
    warned = pytest.warns(perfkit.PerfkitWarning, match=r"program0.py:1: .* needs a reason in brackets")
    with warned, detect_syncs("dry", device_of=weight) as syncs:
        run_program("w.sum().item()  # perfkit: allow-sync", w=weight)

    assert len(syncs.events) == 1


def test_a_reason_is_required() -> None:
    for wrong in ("", "  ", print):
        with pytest.raises(perfkit.UsageError, match="needs a reason"):
            perfkit.allow_sync(wrong)  # type: ignore[arg-type]


def test_a_generator_cannot_be_decorated() -> None:
    def batches() -> Any:
        yield 1

    with pytest.raises(perfkit.UsageError, match="cannot decorate the generator"):
        perfkit.allow_sync("loading")(batches)
