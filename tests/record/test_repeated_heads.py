"""Keys that are copied for several heads, as the step in which ops are listened to shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import RepeatedHeads

BATCH, HEADS, GROUPS, PLACES, WIDTH = 2, 3, 4, 10, 8
KEYS = torch.randn(BATCH, HEADS, PLACES, WIDTH)
QUERIES = torch.randn(BATCH, HEADS * GROUPS, 1, WIDTH)


def expanded(keys: torch.Tensor) -> torch.Tensor:
    wide = keys[:, :, None].expand(BATCH, HEADS, GROUPS, PLACES, WIDTH)
    return wide.reshape(BATCH, HEADS * GROUPS, PLACES, WIDTH)  # copies


def found(step: Callable[[], Any], *, inference: bool = False) -> tuple[RepeatedHeads, ...]:
    log = ConstantOpLog(lambda: "forward")
    for _ in range(2):
        log.start()
        with torch.inference_mode(inference):
            step()
        log.stop()
    return log.inputs.repeated_heads.rows()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "repeat",
    [expanded, lambda keys: keys.repeat_interleave(GROUPS, dim=1)],
    ids=["expanded", "repeat_interleave"],
)
def test_attention_to_copies_of_keys_is_found_with_their_line(
    repeat: Callable[[torch.Tensor], torch.Tensor], inference: bool
) -> None:
    def step() -> None:
        keys = repeat(KEYS)
        F.scaled_dot_product_attention(QUERIES, keys, keys)

    [row] = found(step, inference=inference)

    assert (row.times, row.queries, row.calls) == (GROUPS, 1, 1)
    assert row.line == step.__code__.co_firstlineno + 2
    assert {at.line for at in row.copied_at} == {repeat.__code__.co_firstlineno + 2 * (repeat is expanded)}


@pytest.mark.parametrize(
    "step",
    [
        lambda: F.scaled_dot_product_attention(QUERIES, KEYS, KEYS, enable_gqa=True),
        lambda: F.scaled_dot_product_attention(QUERIES.view(BATCH, HEADS, GROUPS, WIDTH), KEYS, KEYS),
        lambda: F.scaled_dot_product_attention(expanded(KEYS), *2 * [KEYS.new_ones(BATCH, 12, PLACES, WIDTH)]),
        lambda: expanded(KEYS).exp(),
        lambda: F.scaled_dot_product_attention(QUERIES, *2 * [KEYS.repeat(1, GROUPS, 1, 1)]),
        lambda: torch.matmul(torch.randn(4, 100, 1, 3), torch.randn(4, 1, 3, 3)),
    ],
    ids=[
        "shared by the attention",
        "queries as rows",
        "copied queries",
        "no attention",
        "heads in another order",
        "points and one matrix",
    ],
)
def test_attention_without_such_copies_is_not(step: Callable[[], Any]) -> None:
    assert found(step) == ()
