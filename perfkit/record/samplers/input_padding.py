"""Padding at the end of all rows of a model's input: no row is as long as the tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

#: Numbers of words.
_WHOLE = frozenset({torch.int16, torch.int32, torch.int64})
#: Numbers of frames: of sound, of a movement.
_REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
#: Looking for padding in so many numbers takes a few ms.
_MAX_NUMBERS = 1_000_000


def padding_of_longest(tensors: Iterable[Any]) -> float | None:
    """The padding (see `common_padding`) of the longest inputs; None where no input has a length.

    The least of those that are equally long: words are padding where their mask and their segments are too.
    """
    known = [found for one in tensors if (found := common_padding(one)) is not None]
    length = max((length for length, _ in known), default=0)
    return min((share for one, share in known if one == length), default=None)


def common_padding(tensor: Any) -> tuple[int, float] | None:
    """The length, and the share of it that is padding in all rows, 0 to 1; None for a tensor that has no length.

    Rows are (samples, length) of whole numbers, of which the last columns are one and the same number; or (samples,
    length, features) or (samples, features, length), the longer of both, of frames, of which the last ones are zero.
    One column alone may be the end of a text, and a row alone may repeat a word.
    """
    if tensor.device.type != "cpu" or tensor.numel() > _MAX_NUMBERS or tensor.shape[:1] < (2,):
        return None
    if tensor.dim() == 2 and tensor.dtype in _WHOLE:
        used = (tensor != tensor[0, -1]).any(dim=0)
    elif tensor.dim() == 3 and tensor.dtype in _REAL:
        features = 2 if tensor.shape[1] >= tensor.shape[2] else 1
        used = (tensor != 0).any(dim=features).any(dim=0)
    else:
        return None
    length = used.numel()
    if length < 2:
        return None
    run = length - 1 - int(used.nonzero()[-1]) if bool(used.any()) else length
    return length, run / length if 1 < run < length else 0.0
