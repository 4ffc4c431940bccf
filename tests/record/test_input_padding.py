"""Padding that all rows of an input end in is told from what they hold."""

from __future__ import annotations

import pytest
import torch

from perfkit.record.samplers.input_padding import common_padding


def words(*lengths: int, to: int = 10, pad: int = 0) -> torch.Tensor:
    rows = torch.full((len(lengths), to), pad)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.arange(1, length + 1)
    return rows


def frames(*lengths: int, to: int = 20, features: int = 4) -> torch.Tensor:
    rows = torch.zeros(len(lengths), to, features)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = 1.0
    return rows


@pytest.mark.parametrize(
    ("tensor", "share"),
    [
        (words(4, 6), 0.4),
        (words(4, 10), 0.0),
        (words(9, 3), 0.0),
        (words(4, 6, pad=-100), 0.4),
        (frames(5, 12), 0.4),
        (frames(5, 20), 0.0),
        (frames(5, 12).transpose(1, 2).contiguous(), 0.4),
        (frames(5, 12).half(), 0.4),
        (frames(0, 0), 0.0),
    ],
    ids=["words", "one is as long", "one column", "another number", "frames", "one as long", "turned", "half", "none"],
)
def test_the_share_is_of_the_longest_row(tensor: torch.Tensor, share: float) -> None:
    assert common_padding(tensor) == pytest.approx(share)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(2, 3, 8, 8), torch.zeros(1, 8, dtype=torch.int64), torch.zeros(4, 8), torch.zeros(()), torch.zeros(0)],
    ids=["images", "one row", "features", "a number", "nothing"],
)
def test_other_tensors_have_no_length(tensor: torch.Tensor) -> None:
    assert common_padding(tensor) is None
