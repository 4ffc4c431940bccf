"""Which rows of a matrix are equal, told apart by numbers that are made of their bits."""

from __future__ import annotations

from typing import Any

import torch

#: Numbers of rows are made of elements of these types only: integers of their size.
COMPARED = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
#: Products of rows with a matrix: the place of the rows.
PRODUCTS = {"mm": 0, "addmm": 1, "linear": 0, "matmul": 0}
#: Elements that are compared at once.
_AT_ONCE = 250_000
#: An odd number to mix columns by.
_MIXES = 0x9E3779B97F4A7C1
#: Places of a row's first copy that are tried as the length of a block.
_TRIED = 8


def first_places(numbers: Any) -> tuple[Any, int]:
    """For each row, by its number, the place of the first one with the same; and how many numbers there are."""
    different, of_row = torch.unique(numbers, return_inverse=True)
    rows = len(numbers)
    places = torch.arange(rows, device=numbers.device)
    first = torch.full_like(different, rows).scatter_reduce_(0, of_row, places, "amin")[of_row]
    return first, len(different)


def are_equal(matrix: Any, places: Any) -> bool:
    """Whether each row is equal to the one at its place."""
    some = max(1, _AT_ONCE // matrix.shape[1])
    pairs = zip(matrix.split(some), places.split(some), strict=True)
    return all(bool((matrix[one] == rows).all()) for rows, one in pairs)


def times_in_blocks(first: Any) -> int:
    """How often each block of rows stands one copy after the other; 1: the rows repeat in another way."""
    rows, best = len(first), 1
    for block in (first[1:] == first[0]).nonzero()[:_TRIED].flatten().add(1).tolist():
        if rows % block:
            continue
        blocks = first.view(-1, block)
        differs = (blocks != blocks[0]).any(1).nonzero()[:1].flatten().tolist()
        times = differs[0] if differs else len(blocks)
        if len(blocks) % times == 0 and times > best:
            groups = first.view(-1, times, block)
            best = times if bool((groups == groups[:, :1]).all()) else best
    return best


def few_columns(matrix: Any, most: int) -> Any:
    """About this many columns, at equal distances."""
    return matrix[:, :: max(1, matrix.shape[1] // most)]


def numbers_of(matrix: Any) -> Any:
    """A number for each row, from all of its bits: the same for equal rows, in whatever order it is summed."""
    kind = COMPARED[matrix.dtype]
    factors = torch.arange(1, matrix.shape[1] + 1, device=matrix.device) * _MIXES | 1
    numbers = []
    for rows in matrix.split(max(1, _AT_ONCE // matrix.shape[1])):
        bits = (rows + 0.0).contiguous().view(kind).to(torch.int64)  # -0.0 + 0.0 is 0.0
        mixed = (bits ^ (bits >> 13)) * factors
        numbers.append((mixed ^ (mixed >> 29)).sum(1))
    return torch.cat(numbers)


def address(tensor: Any) -> int:
    """That of the memory, which views share."""
    return int(tensor.untyped_storage().data_ptr())
