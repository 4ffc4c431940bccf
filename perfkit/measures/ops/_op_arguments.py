"""The arguments of one call of an op, as a trace has them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

#: Bytes of an element, by the names that traces have for its type.
SIZES = {
    **dict.fromkeys(("c10::BFloat16", "c10::Half"), 2),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "char"), 1),
    **dict.fromkeys(("short", "short int"), 2),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), 1),
    "c10::complex<double>": 16,
}

#: Lists of tensors come without their type; the state of optimizers is nearly always float32.
ASSUMED = "float"

#: No tensor is larger; a hostile file must not make numbers that no report can print.
MAX_SIZE = 2**60
#: torch's own limit.
MAX_DIMENSIONS = 64


class Tensor(NamedTuple):
    """Shape and type of one tensor, and its strides where they are known."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * SIZES[self.dtype]


class Arguments:
    """The arguments of one call, as a trace has them."""

    def __init__(self, name: str, dims: Any, types: Any, concrete: Any) -> None:
        self.name = name
        self.values: Sequence[Any] = concrete if isinstance(concrete, list) else ()
        self.places: list[tuple[Tensor, ...]] = [
            tuple(_tensors(shape, dtype)) for shape, dtype in zip(dims, types, strict=False)
        ]
        self.has_lists = "TensorList" in types

    def __getitem__(self, place: int) -> Tensor:
        (tensor,) = self.places[place]
        return tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for place in self.places for tensor in place]

    def ints(self, place: int) -> list[int]:
        """A list of numbers among the arguments."""
        found = json.loads(self.values[place])
        return [int(one) for one in found]

    def is_true(self, place: int) -> bool:
        return bool(self.values[place] == "True")


def _tensors(shape: Any, dtype: Any) -> list[Tensor]:
    if dtype == "TensorList":
        return [tensor for one in shape for tensor in _tensors(one, ASSUMED)]
    if dtype not in SIZES:
        return []
    if len(shape) > MAX_DIMENSIONS or not all(type(length) is int and 0 <= length < MAX_SIZE for length in shape):
        raise ValueError(shape)
    return [Tensor(tuple(shape), dtype)]
