"""Padding that all rows of an input end in is told from what they hold."""

from __future__ import annotations

import pytest
import torch

from perfkit.record.samplers.input_padding import common_padding, padding_of_longest


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
    found = common_padding(tensor)
    assert found is not None
    assert found[1] == pytest.approx(share)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(2, 3, 8, 8), torch.zeros(1, 8, dtype=torch.int64), torch.zeros(4, 8), torch.zeros(()), torch.zeros(0)],
    ids=["images", "one row", "features", "a number", "nothing"],
)
def test_other_tensors_have_no_length(tensor: torch.Tensor) -> None:
    assert common_padding(tensor) is None


def test_a_mask_as_long_as_the_words_has_to_be_padding_too() -> None:
    assert padding_of_longest([words(4, 6), torch.ones(2, 10, dtype=torch.int64)]) == 0.0


def test_a_shorter_input_without_padding_changes_nothing() -> None:
    assert padding_of_longest([frames(5, 5, to=5), words(4, 6)]) == pytest.approx(0.4)


def test_inputs_without_a_length_have_no_padding() -> None:
    assert padding_of_longest([torch.zeros(4, 8), torch.zeros(())]) is None
