"""Rows that a step computes and leaves out: a catalogue that is encoded as a whole, of which a batch reads a few rows.

The rows of a tensor are followed through ops that compute each row from the same row of their inputs: products with
weights, convolutions of a batch, functions of an element, norms of a row. A picture has rows of places, of which an
index by two numbers picks some. Where an op picks rows by an index, those
that nothing picks could have been left out before. Where an op mixes rows (a batch norm, attention, messages along
edges, scores of all), all of them are needed.

`ConstantOpLog` hands on the ops of a step, without views: a tensor is known by the memory that it shares.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site, location_of
from perfkit.run.records import DroppedRows

#: Fewer rows are not looked at: a choice among them saves little (chosen).
FEW_ROWS = 16
#: Results of ops of elements with fewer elements are not looked at, unless their rows come from a product (chosen).
_ELEMENTS = 50_000
#: Tensors that are followed in a step, and elements of an index whose different ones are counted: 3.5 ms for so many on
#: one CPU, 42 for ten times as many.
MAX_TENSORS, _MAX_INDEX = 10_000, 100_000
#: Choices of rows in a step that are looked at: at most a second of one step for the largest indices.
_MAX_CHOICES = 300
#: Ops that compute rows from rows: the place of the tensor that has them.
_ROWS_AT = {"mm": 0, "linear": 0, "convolution": 0, "addmm": 1, "embedding": 1}
#: Ops of elements: their other tensors have as many rows, or the same for all.
OF_ELEMENTS = frozenset(
    (
        *("add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "pow", "square", "where"),
        *("relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "softplus", "clamp", "clamp_min", "hardtanh"),
        *("mish", "hardswish", "native_dropout", "native_layer_norm", "clone", "_to_copy", "max_pool2d_with_indices"),
    )
)
#: Ops along a dimension, by the place of its number: along the first one they mix rows.
_ALONG = {"_softmax": 1, "_log_softmax": 1, "sum": 1, "mean": 1, "linalg_vector_norm": 2}
#: Ops that pick rows of their first tensor, by the place of the index.
_CHOICES = {"index": 1, "index_select": 2, "embedding": 1}


class _Rows(NamedTuple):
    """How many rows a tensor has, the lines that computed them, and the numbers of the ops with which they begin.

    Its places along the first ``depth`` dimensions were computed each from the same place.
    """

    number: int
    depth: int
    lines: frozenset[Site]
    roots: frozenset[int]


class DroppedRowCounts:
    """Follows the rows of tensors through one step; keeps no tensor alive."""

    def __init__(self) -> None:
        #: By the address of the memory. What was freed is replaced by what is made there next.
        self._known: dict[int, _Rows] = {}
        self._next_root = self._choices = 0
        #: Where all rows are needed.
        self._mixed: set[int] = set()
        #: Memory that the step before made, and its bytes; the bytes of what this step reads of it; and of each root's.
        self._earlier: dict[int, int] = {}
        self._carried: set[int] = set()
        self._bytes: dict[int, set[int]] = {}
        #: (line that picks, shape of what it picks from) -> the rows, and how many it picks at most.
        self._picked: dict[tuple[Site, tuple[int, ...]], tuple[_Rows, int]] = {}

    def add_earlier(self, out: Any) -> None:
        """An op of the step before has returned ``out``: a state that this step reads, the next one reads as well."""
        first = out[0] if isinstance(out, tuple) and out else out
        if is_tensor(first) and first.dim() and first.shape[0] >= FEW_ROWS and len(self._earlier) < MAX_TENSORS:
            memory = first.untyped_storage()
            self._earlier[memory.data_ptr()] = memory.nbytes()

    def add(self, func: Any, arguments: Any, out: Any, site: Site) -> None:
        """An op of a line of the user's has returned ``out`` for these positional arguments."""
        name = func.overloadpacket.__name__.removesuffix("_")
        tensors = [one for part in arguments for one in (part if isinstance(part, list | tuple) else (part,))]
        tensors = [one for one in tensors if is_tensor(one)]
        for tensor in tensors if self._earlier else ():
            if (bytes_of_state := self._earlier.get(tensor.untyped_storage().data_ptr())) is not None:
                self._carried.add(bytes_of_state)
        first = out[0] if isinstance(out, tuple) and out else out
        if not is_tensor(first) or first.device.type != "cpu" or not first.dim():
            self._mix(tensors)  # one number of all rows
            return
        if name in _CHOICES and (known := self._of(arguments[0])) is not None:
            self._choices += 1
            if self._choices <= _MAX_CHOICES and (picked := _picked(name, arguments, known)) is not None:
                self._pick(known, *picked, site)
            else:
                self._mixed |= known.roots
            self._set(first, None)
            return
        rows, read = self._rows_of(name, arguments, tensors, first)
        self._mix([tensor for tensor in tensors if rows is None or tensor not in read])
        self._set(first, rows._replace(lines=rows.lines | {site}) if rows is not None else None)

    def _rows_of(self, name: str, arguments: Any, tensors: list[Any], out: Any) -> tuple[_Rows | None, _Tensors]:
        """The rows of what the op returned, None where they are not computed row by row; the tensors that have them."""
        count, depth = int(out.shape[0]), out.dim()
        if count < FEW_ROWS:
            return None, _Tensors()
        if name in _ROWS_AT:
            source = arguments[_ROWS_AT[name]]
            # The other operand of a product of a tensor with itself is needed as a whole.
            self._mix([one for at, one in enumerate(arguments) if at != _ROWS_AT[name] and is_tensor(one)])
            if source.shape[0] != count:
                return None, _Tensors()
            known = self._of(source)
            if known is not None and known.number == count and _is_by_rows(source):
                return known, _Tensors((source,))
            self._mix([source])
            return self._begin(count, 1), _Tensors((source,))
        if name in _ALONG:
            depth = min(depth, *_dimensions(arguments, _ALONG[name]))
        elif name == "native_layer_norm":
            depth -= len(arguments[1])
        elif name == "max_pool2d_with_indices":
            depth = 2
        if depth < 1 or not (name in OF_ELEMENTS or name in _ALONG):
            return None, _Tensors()
        read = _Tensors(one for one in tensors if one.dim() and one.shape[0] == count)
        others = [
            one for one in read if (known := self._of(one)) is None or known.number != count or not _is_by_rows(one)
        ]
        self._mix(others)
        known_rows = [known for one in read if (known := self._of(one)) is not None and known.number == count]
        if not known_rows:
            begins = out.numel() >= _ELEMENTS and read and all(map(_is_by_rows, read))
            return (self._begin(count, depth) if begins else None), read
        lines, roots = (frozenset[Any]().union(*parts) for parts in zip(*(one[2:] for one in known_rows), strict=True))
        return _Rows(count, min(depth, *(one.depth for one in known_rows)), lines, roots), read

    def _begin(self, count: int, depth: int) -> _Rows:
        self._next_root += 1
        return _Rows(count, depth, frozenset(), frozenset((self._next_root,)))

    def add_read(self, tensor: Any) -> None:
        """Something other than an op of the forward reads all rows of a tensor."""
        self._mix([tensor])

    def _mix(self, tensors: list[Any]) -> None:
        """All rows of these tensors are needed."""
        for tensor in tensors:
            if (known := self._of(tensor)) is not None:
                self._mixed |= known.roots

    def _of(self, tensor: Any) -> _Rows | None:
        return self._known.get(tensor.untyped_storage().data_ptr()) if is_tensor(tensor) else None

    def _set(self, tensor: Any, rows: _Rows | None) -> None:
        memory = tensor.untyped_storage()
        address = memory.data_ptr()
        self._earlier.pop(address, None)  # it is new
        for root in rows.roots if rows is not None else ():
            self._bytes.setdefault(root, set()).add(memory.nbytes())
        if rows is not None and len(self._known) < MAX_TENSORS:
            self._known[address] = rows
            return
        self._known.pop(address, None)
        if rows is not None:
            self._mixed |= rows.roots  # they cannot be followed

    def _pick(self, known: _Rows, picked: int, shape: tuple[int, ...], site: Site) -> None:
        before, count = self._picked.get((site, shape), (known, 0))
        # Several calls of a line may pick other rows each time.
        rows = known._replace(lines=before.lines | known.lines, roots=before.roots | known.roots)
        self._picked[site, shape] = rows, min(prod(shape), count + picked)

    def rows(self) -> tuple[DroppedRows, ...]:
        """The lines that pick some of the rows that others computed, and that nothing else needs."""
        found: dict[tuple[Any, ...], list[tuple[Site, _Rows, int]]] = {}
        for (site, shape), (rows, picked) in self._picked.items():
            is_carried = any(self._bytes.get(root, set()) & self._carried for root in rows.roots)
            if not is_carried and not rows.roots & self._mixed:
                found.setdefault((rows.roots, shape), []).append((site, rows, picked))
        # Rows that are also picked as a part of others, or as places, may all be picked there.
        alone = [
            (key, lines) for key, lines in found.items() if not any(one != key and one[0] & key[0] for one in found)
        ]
        return tuple(row for (_, shape), lines in alone if (row := _row(lines, shape)).picked < row.rows)


def _row(lines: list[tuple[Site, _Rows, int]], shape: tuple[int, ...]) -> DroppedRows:
    """Several lines that pick from the same rows: the first stands for all."""
    (code, line), rows, _ = lines[0]
    return DroppedRows(
        file=code.co_filename,
        line=line,
        function=function_name(code),
        owner=USER,
        rows=prod(shape),
        shape=shape,
        picked=min(prod(shape), sum(picked for _, _, picked in lines)),
        made_at=tuple(sorted(map(location_of, rows.lines), key=lambda at: (at.file, at.line or 0))),
    )


class _Tensors(tuple[Any, ...]):
    """Some tensors; ``in`` asks for the very object, because tensors compare by their elements."""

    def __contains__(self, tensor: object) -> bool:
        return any(tensor is one for one in self)


def _picked(name: str, arguments: Any, known: _Rows) -> tuple[int, tuple[int, ...]] | None:
    """How many of the rows an index picks at most, and their shape; None where it picks something else."""
    source = arguments[0]
    indices = [arguments[_CHOICES[name]]]
    if name == "index":
        indices = [one for one in arguments[1] if one is not None]
        if any(one is None for one in arguments[1][: len(indices)]):
            return None
    elif name == "index_select" and arguments[1] % source.dim():
        return None
    if not all(map(is_tensor, indices)) or source.shape[0] != known.number:
        return None
    is_mask = indices[0].dtype.itemsize == 1
    depth = indices[0].dim() if is_mask else len(indices)
    shape = tuple(int(length) for length in source.shape[:depth])
    one = indices[0]
    if (
        depth > known.depth
        or one.numel() > (_MAX_INDEX if depth == 1 else prod(shape))
        or (is_mask and len(indices) > 1)
    ):
        return None
    if depth > 1 and not is_mask:
        return max(int(index.numel()) for index in indices), shape
    with without_modes():
        return int(one.sum() if is_mask else torch.unique(one).numel()), shape


def _is_by_rows(tensor: Any) -> bool:
    """Whether the first dimension is the outermost in memory too: of a transposed tensor it is another one."""
    strides = [stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if length > 1]
    return not strides or tensor.shape[0] == 1 or tensor.stride()[0] == max(strides)


def _dimensions(arguments: Any, place: int) -> list[int]:
    """The dimensions that an op goes along, by the place of their numbers; the first one where it goes along all."""
    along = arguments[place] if len(arguments) > place else None
    along = along if isinstance(along, list | tuple) else [along]
    return [0 if one is None else one % arguments[0].dim() for one in along] or [0]
