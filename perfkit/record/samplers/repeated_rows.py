"""Rows that go into a linear layer several times: gathered for each edge of a graph, or expanded over time steps.

`OpInputs` hands on the ops of one step, without views: a tensor is known by the memory that it shares. Rows that are
equal by chance, as those of words, are not counted: they are gathered in this step from a smaller tensor that is no
table of parameters, or equal in blocks. Where a step has no other rows, its batch is dummy data, or drawn from little.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_plain, is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.record.samplers.equal_rows import (
    COMPARED,
    PRODUCTS,
    are_equal,
    few_columns,
    first_places,
    numbers_of,
    times_in_blocks,
)
from perfkit.record.samplers.followed_memory import FollowedMemory, needs_gradient
from perfkit.record.samplers.op_paths import is_closed
from perfkit.record.samplers.op_schemas import tensors_in
from perfkit.run.records import RepeatedRows

#: Products of rows with a matrix: the place of the rows.
_PRODUCTS = {**PRODUCTS, "bmm": 0}
_LAYERS = {*_PRODUCTS, "convolution", "conv1d", "conv2d", "conv3d"}
_GATHERS = ("index", "index_select", "gather")
_COPIES = (*_GATHERS, "repeat", "repeat_interleave", "clone", "reshape", "contiguous")
#: Fewer rows, columns or multiplications are cheap, whatever is in them (chosen).
_ROWS, _COLUMNS, _MULTIPLICATIONS = 64, 8, 1_000_000
#: Elements that are compared, and rows that are sorted, in a step (0.25 s at most were measured).
_MAX_ELEMENTS, _MAX_ROWS = 50_000_000, 500_000
#: Columns by which rows are compared first, and different rows that show that a step has others.
_FEW_COLUMNS, _OTHERS = 16, 8
#: The share of elements that are not zero from which on rows are compared: fewer are one-hot or words in a bag.
_DENSE = 0.1


class _Origin(NamedTuple):
    """What is known of a tensor of the step.

    ``share`` are the rows of the tensor that it was gathered from, for each row; None where it was not gathered.
    ``looked_up`` is whether its rows are those of a table of parameters, ``is_repeated`` whether it is computed from
    a layer's input whose rows repeat, ``is_data`` whether it was gathered from what no op of the step made,
    ``is_copied`` whether an op of the step copied rows of what it is computed from. ``has_gradients`` is whether each
    of its rows has a gradient of its own, which the program gets.
    """

    share: float | None = None
    looked_up: bool = False
    is_repeated: bool = False
    is_data: bool = False
    is_copied: bool = False
    has_gradients: bool = False


class _Copies(NamedTuple):
    """Of the rows of a product: the different ones, and those that are computed without copies.

    ``all_data`` is whether this may only be a batch of equal samples, or of few that are drawn many times, so that it
    counts only in a step that has other rows.
    """

    different: int
    needed: int
    all_data: bool


_UNKNOWN = _Origin()


class RepeatedRowCounts:
    """Counts the different rows of products, by line and size; keeps no tensor alive."""

    def __init__(self) -> None:
        self._compared = self._sorted = 0
        self._followed = FollowedMemory(_UNKNOWN)
        #: Whether a layer of the step gets different rows that are not computed from repeated ones.
        self.has_others = False
        #: (line, rows, columns of the input and of the result) -> calls, and of all of them the different rows and
        #: those that are computed without copies.
        self._calls: Counter[tuple[Site, int, int, int]] = Counter()
        self._different: Counter[tuple[Site, int, int, int]] = Counter()
        self._needed: Counter[tuple[Site, int, int, int]] = Counter()
        #: Those that count in a step that has different rows too.
        self._all_data: set[tuple[Site, int, int, int]] = set()

    def add(self, func: Any, arguments: Any, out: Any, site: Site, *, of_samples: bool = False) -> None:
        """An op of a line of the user's has returned ``out`` for these positional arguments.

        ``of_samples`` is whether it is a layer that `RepeatedSampleCounts` counts.
        """
        name = func.overloadpacket.__name__
        result = out[0] if isinstance(out, tuple) and out else out
        if not is_plain(result) or result.device.type != "cpu" or not result.is_floating_point() or not result.dim():
            return
        origin = self._origin_of(name, arguments, result)
        if name in _LAYERS and (of_samples or self._look_at(name, arguments, result, site, origin)):
            source = arguments[_PRODUCTS.get(name, 0)]
            self._followed.set(source, self._followed.of(source)._replace(is_repeated=True))
            origin = origin._replace(is_repeated=True)
        self._followed.set(result, origin)
        # A weight in another type, as under autocast, is a weight.
        is_cast = name in ("_to_copy", "to") and arguments and not self._followed.is_made(arguments[0])
        if is_cast:
            self._followed.discard_made(result)
        else:
            self._followed.add_made(result)

    def _origin_of(self, name: str, arguments: Any, out: Any) -> _Origin:
        if name == "embedding":
            return _Origin(looked_up=True)
        tensors = [one for one in tensors_in(arguments) if one.layout is out.layout]
        known = [self._followed.of(one) for one in tensors]
        shares = [one.share for one in known if one.share is not None]
        origin = _Origin(max(shares, default=None), *(any(one[at] for one in known) for at in (1, 2, 3, 4)))
        were_copied = origin.is_copied or origin.share is not None
        if name in _LAYERS:
            rows = arguments[_PRODUCTS.get(name, 0)]
            needs = self._followed.of(rows).has_gradients or needs_gradient(rows)
        else:
            needs = any(one.has_gradients for one in known)
            needs = needs or any(needs_gradient(one, out, is_copied=were_copied) for one in tensors)
        origin = origin._replace(has_gradients=needs)
        source = arguments[0] if arguments else None
        if name not in _COPIES or not is_tensor(source) or source.dim() < 2 or not out.numel():
            return origin
        of_source, of_out = _in_memory(source, source.dim() - 1), int(out.numel() // max(1, out.shape[-1]))
        # Rows that are cut into several are no copies.
        of_elements = _in_memory(source, source.dim())
        is_larger = of_source < of_out and of_elements < out.numel()
        are_copies = 2 * of_source <= of_out and 2 * of_elements <= out.numel()
        if are_copies and not were_copied:
            # The gradient of a row that is copied is the sum of its copies', whatever comes first.
            needs &= 2 * of_elements <= source.numel() and needs_gradient(source)
            origin = origin._replace(has_gradients=needs)
        if name in _GATHERS:
            # A table of parameters is looked up: its rows repeat as words do.
            is_table = source.is_leaf and source.requires_grad
            share = of_source / of_out if not is_table and 2 * of_source <= of_out else None
            is_data, looked_up = not self._followed.is_made(source), is_table or (share is None and origin.looked_up)
            return _Origin(share, looked_up, origin.is_repeated, is_data, has_gradients=needs)
        is_copied = origin.is_copied or are_copies
        return origin._replace(looked_up=origin.looked_up and not is_larger, is_copied=is_copied)

    def _look_at(self, name: str, arguments: Any, out: Any, site: Site, origin: _Origin) -> bool:
        """Count the different rows of a layer's input; whether they are repeated."""
        place = _PRODUCTS.get(name, 0)
        source, weight = arguments[place : place + 2]
        if not is_plain(source) or not is_tensor(weight) or source.dim() < 2:
            return False
        if not source.numel() or source.dtype not in COMPARED or (name == "bmm" and weight.stride(0)):
            return False
        is_product = name in _PRODUCTS and (name not in ("linear", "matmul") or weight.dim() == 2)
        if is_product and self._followed.is_made(weight):
            return False  # no layer: both are results of the step
        columns, results = int(source.shape[-1]), int(out.shape[-1])
        rows = int(source.numel() // columns) if is_product else int(source.shape[0])
        is_small = rows < _ROWS or columns < _COLUMNS or rows * columns * results < _MULTIPLICATIONS
        if not is_product or is_small or origin.looked_up or origin.has_gradients:
            return self._look_for_others(source, rows, origin)
        self._sorted += rows
        if self._sorted > _MAX_ROWS or self._compared + rows * columns > _MAX_ELEMENTS:
            return False
        with without_modes():
            copies = self._copies_in(source.detach().reshape(rows, columns), origin)
        is_repeated = copies is not None
        if copies is not None and is_closed():
            copies = None
        key = site, rows, columns, results
        self._calls[key] += 1
        self._different[key] += copies.different if copies is not None else rows
        self._needed[key] += copies.needed if copies is not None else rows
        if copies is not None and copies.all_data:
            self._all_data.add(key)
        return is_repeated

    def _look_for_others(self, source: Any, rows: int, origin: _Origin) -> bool:
        """Whether the rows of a layer that is not counted are repeated; else the step may have other ones."""
        if self.has_others or origin.is_repeated or rows < _OTHERS or not source.is_contiguous():
            return False
        self._sorted += rows
        if self._sorted > _MAX_ROWS:
            return False
        with without_modes():
            few = few_columns(source.detach().reshape(rows, -1), _FEW_COLUMNS)
            self.has_others = 2 * int(torch.unique(numbers_of(few)).numel()) > rows
            return not self.has_others and bool(few.any())

    def _copies_in(self, matrix: Any, origin: _Origin) -> _Copies | None:
        """The different rows, where at most half are and why is known; None where not."""
        rows = len(matrix)
        for columns in (few_columns(matrix, _FEW_COLUMNS), matrix):
            first, different = first_places(numbers_of(columns))
            if different > rows // 2 + 1:
                self.has_others |= not origin.is_repeated
                return None
            self._compared += int(matrix.numel())
            if are_equal(matrix, first):
                return _copies_of(matrix, first, origin)
        return None  # there are NaNs

    def rows(self) -> tuple[RepeatedRows, ...]:
        """The lines whose layers get each row several times."""
        return tuple(
            RepeatedRows(
                file=code.co_filename, line=line, function=function_name(code), owner=USER,
                rows=calls * rows, different=self._different[key], needed=self._needed[key],
                columns=columns, results=results, calls=calls,
            )
            for key, calls in self._calls.items()
            for (code, line), rows, columns, results in [key]
            if 2 * self._needed[key] <= calls * rows and (self.has_others or key not in self._all_data)
        )  # fmt: skip


def _copies_of(matrix: Any, first: Any, origin: _Origin) -> _Copies | None:
    """What repeats the rows, by the place of the first equal one of each; None where that is not known."""
    rows = len(matrix)
    has_values = matrix.any(1)
    with_values = int(has_values.sum())
    different = int(torch.unique(first[has_values]).numel())
    # All of them equal are dummy data or a state that begins, zeros padding or one-hot rows.
    is_dense = int(torch.count_nonzero(matrix)) > _DENSE * with_values * matrix.shape[1]
    if different < 2 or 2 * different > with_values or 2 * with_values < rows or not is_dense:
        return None
    different += with_values < rows
    gathered = round(origin.share * rows) if origin.share is not None else rows
    if 2 * gathered <= rows and different <= gathered:
        return _Copies(different, gathered, all_data=origin.is_data)
    times = times_in_blocks(first)
    # Copies next to each other are made on purpose; whole blocks one after the other may be a batch of equal samples.
    is_meant = origin.is_copied and bool((first.view(-1, times) == first[::times, None]).all())
    return _Copies(different, rows // times, all_data=not is_meant) if times > 1 else None


def _in_memory(tensor: Any, dims: int) -> int:
    """The product of a tensor's first lengths, without those that are only expanded."""
    pairs = zip(tensor.shape[:dims], tensor.stride()[:dims], strict=True)
    return prod(int(length) for length, stride in pairs if stride)
