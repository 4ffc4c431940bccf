"""Rows that go into a linear layer several times: gathered for each edge of a graph, or expanded over time steps.

`OpInputs` hands on the ops of one step, without views: a tensor is known by the memory that it shares. Rows that are
equal by chance, as those of words, are not counted: they are gathered in this step from a smaller tensor that is no
table of parameters, or equal in blocks. Where a step has no other rows, its batch is dummy data, or drawn from little.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_plain, is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.record.samplers.op_paths import is_closed
from perfkit.record.samplers.op_schemas import tensors_in
from perfkit.run.records import RepeatedRows

#: Products of rows with a matrix: the place of the rows.
_PRODUCTS = {"mm": 0, "addmm": 1, "linear": 0, "matmul": 0, "bmm": 0}
_LAYERS = {*_PRODUCTS, "convolution", "conv1d", "conv2d", "conv3d"}
_GATHERS = ("index", "index_select", "gather")
_COPIES = (*_GATHERS, "repeat", "repeat_interleave", "clone", "reshape", "contiguous")
#: Fewer rows, columns or multiplications are cheap, whatever is in them (chosen).
_ROWS, _COLUMNS, _MULTIPLICATIONS = 64, 8, 1_000_000
#: Elements that are compared, and rows that are sorted, in a step (0.25 s at most were measured); elements at once.
_MAX_ELEMENTS, _MAX_ROWS, _AT_ONCE = 50_000_000, 500_000, 250_000
#: Tensors that are followed in a step.
_MAX_FOLLOWED = 10_000
#: Columns by which rows are told apart first, an odd number to mix them by, and rows that tell that a step has others.
_FEW_COLUMNS, _MIXES, _OTHERS = 16, 0x9E3779B97F4A7C1, 8
#: The share of elements that are not zero from which on rows are compared: fewer are one-hot or words in a bag.
_DENSE = 0.1
#: Places of a row's first copy that are tried as the length of a block.
_TRIED = 8


class _Origin(NamedTuple):
    """What is known of a tensor of the step.

    ``share`` are the rows of the tensor that it was gathered from, for each row; None where it was not gathered.
    ``looked_up`` is whether its rows are those of a table of parameters, ``is_repeated`` whether it is computed from
    a layer's input whose rows repeat, ``is_data`` whether it was gathered from what no op of the step made.
    """

    share: float | None = None
    looked_up: bool = False
    is_repeated: bool = False
    is_data: bool = False


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
        #: By the address of the memory. What was freed is replaced by what is made there next.
        self._origins: dict[int, _Origin] = {}
        #: The addresses of what ops of the step returned.
        self._made: set[int] = set()
        #: Whether a layer of the step gets different rows that are not computed from repeated ones.
        self._has_others = False
        #: (line, rows, columns of the input and of the result) -> calls, and of all of them the different rows and
        #: those that are computed without copies.
        self._calls: Counter[tuple[Site, int, int, int]] = Counter()
        self._different: Counter[tuple[Site, int, int, int]] = Counter()
        self._needed: Counter[tuple[Site, int, int, int]] = Counter()
        #: Those that count in a step that has different rows too.
        self._all_data: set[tuple[Site, int, int, int]] = set()

    def add(self, func: Any, arguments: Any, out: Any, site: Site) -> None:
        """An op of a line of the user's has returned ``out`` for these positional arguments."""
        name = func.overloadpacket.__name__
        first = out[0] if isinstance(out, tuple) and out else out
        if not is_plain(first) or first.device.type != "cpu" or not first.is_floating_point() or not first.dim():
            return
        origin = self._origin_of(name, arguments, first)
        if name in _LAYERS and self._look_at(name, arguments, first, site, origin):
            source = arguments[_PRODUCTS.get(name, 0)]
            self._set(source, self._origins.get(_address(source), _UNKNOWN)._replace(is_repeated=True))
            origin = origin._replace(is_repeated=True)
        self._set(first, origin)
        # A weight in another type, as under autocast, is a weight.
        is_cast = name in ("_to_copy", "to") and arguments and _address(arguments[0]) not in self._made
        if len(self._made) < _MAX_FOLLOWED and not is_cast:
            self._made.add(_address(first))

    def _set(self, tensor: Any, origin: _Origin) -> None:
        if origin == _UNKNOWN:
            self._origins.pop(_address(tensor), None)
        elif len(self._origins) < _MAX_FOLLOWED or _address(tensor) in self._origins:
            self._origins[_address(tensor)] = origin

    def _origin_of(self, name: str, arguments: Any, out: Any) -> _Origin:
        if name == "embedding":
            return _Origin(looked_up=True)
        known = [
            self._origins.get(_address(one), _UNKNOWN) for one in tensors_in(arguments) if one.layout is out.layout
        ]
        shares = [one.share for one in known if one.share is not None]
        origin = _Origin(max(shares, default=None), *(any(one[at] for one in known) for at in (1, 2, 3)))
        source = arguments[0] if arguments else None
        if name not in _COPIES or not is_tensor(source) or source.dim() < 2 or not out.numel():
            return origin
        of_source, of_out = _rows_in_memory(source), int(out.numel() // max(1, out.shape[-1]))
        if name in _GATHERS:
            # A table of parameters is looked up: its rows repeat as words do.
            is_table = source.is_leaf and source.requires_grad
            share = of_source / of_out if not is_table and 2 * of_source <= of_out else None
            is_data = _address(source) not in self._made
            return _Origin(share, is_table or (share is None and origin.looked_up), origin.is_repeated, is_data)
        return origin._replace(looked_up=origin.looked_up and of_source >= of_out)

    def _look_at(self, name: str, arguments: Any, out: Any, site: Site, origin: _Origin) -> bool:
        """Count the different rows of a layer's input; whether they are repeated."""
        place = _PRODUCTS.get(name, 0)
        source, weight = arguments[place : place + 2]
        if not is_plain(source) or not is_tensor(weight) or source.dim() < 2:
            return False
        if not source.numel() or not source.is_floating_point() or (name == "bmm" and weight.stride(0)):
            return False
        is_product = name in _PRODUCTS and (name not in ("linear", "matmul") or weight.dim() == 2)
        if is_product and _address(weight) in self._made:
            return False  # no layer: both are results of the step
        columns, results = int(source.shape[-1]), int(out.shape[-1])
        rows = int(source.numel() // columns) if is_product else int(source.shape[0])
        is_small = rows < _ROWS or columns < _COLUMNS or rows * columns * results < _MULTIPLICATIONS
        if not is_product or is_small or origin.looked_up:
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
        if self._has_others or origin.is_repeated or rows < _OTHERS or not source.is_contiguous():
            return False
        self._sorted += rows
        if self._sorted > _MAX_ROWS:
            return False
        with without_modes():
            few = _few_columns(source.detach().reshape(rows, -1))
            self._has_others = 2 * int(torch.unique(_numbers_of(few)).numel()) > rows
            return not self._has_others and bool(few.any())

    def _copies_in(self, matrix: Any, origin: _Origin) -> _Copies | None:
        """The different rows, where at most half are and why is known; None where not."""
        rows = len(matrix)
        for columns in (_few_columns(matrix), matrix):
            numbers, of_row = torch.unique(_numbers_of(columns), return_inverse=True)
            if len(numbers) > rows // 2 + 1:
                self._has_others |= not origin.is_repeated
                return None
            self._compared += int(matrix.numel())
            places = torch.arange(rows, device=matrix.device)
            first = torch.full_like(numbers, rows).scatter_reduce_(0, of_row, places, "amin")[of_row]
            if _are_equal(matrix, first):
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
            if 2 * self._needed[key] <= calls * rows and (self._has_others or key not in self._all_data)
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
    times = _times_in_blocks(first)
    return _Copies(different, rows // times, all_data=True) if times > 1 else None


def _are_equal(matrix: Any, places: Any) -> bool:
    """Whether each row is equal to the one at its place."""
    some = max(1, _AT_ONCE // matrix.shape[1])
    pairs = zip(matrix.split(some), places.split(some), strict=True)
    return all(bool((matrix[one] == rows).all()) for rows, one in pairs)


def _times_in_blocks(first: Any) -> int:
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


def _few_columns(matrix: Any) -> Any:
    return matrix[:, :: max(1, matrix.shape[1] // _FEW_COLUMNS)]


def _numbers_of(matrix: Any) -> Any:
    """A number for each row, from all of its bits: the same for equal rows, in whatever order it is summed."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[matrix.element_size()]
    factors = torch.arange(1, matrix.shape[1] + 1, device=matrix.device) * _MIXES | 1
    numbers = []
    for rows in matrix.split(max(1, _AT_ONCE // matrix.shape[1])):
        bits = (rows + 0.0).contiguous().view(kind).to(torch.int64)  # -0.0 + 0.0 is 0.0
        mixed = (bits ^ (bits >> 13)) * factors
        numbers.append((mixed ^ (mixed >> 29)).sum(1))
    return torch.cat(numbers)


def _rows_in_memory(tensor: Any) -> int:
    """The rows of a tensor without those that are only expanded."""
    rows = 1
    for length, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        rows *= int(length) if stride else 1
    return rows


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
