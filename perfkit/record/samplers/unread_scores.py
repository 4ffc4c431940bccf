"""Scores that a step computes and does not read: of all words at each place of a text, where those of one are used.

The result of a product with many more columns than its input has is followed through ops of elements. Where all that
is read of it are views of a smaller part, as of the last place, or places that an index picks, the product could have
been made for that part alone.
Of square products the diagonal alone may be read: ``(a @ b.T).diagonal()`` is ``(a * b).sum(-1)``.

`ConstantOpLog` hands on the ops of a step, without views: a tensor is known by the memory that it shares.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor
from perfkit.record.samplers.call_paths import Site, location_of
from perfkit.record.samplers.dropped_rows import FEW_ROWS, MAX_TENSORS, OF_ELEMENTS
from perfkit.run.records import DroppedRows

#: So many times as many columns as its input has a result that is looked at (chosen): the scores of a vocabulary have 5
#: to 50 times as many. What a layer of a transformer computes for other places than the one that is read at the end has
#: as many, and nobody leaves that out.
_WIDER = 2
#: Products with weights: the place of the tensor that has the rows.
_PRODUCTS = {"mm": 0, "linear": 0, "addmm": 1}
#: Products of matrices, whose result may be square.
_SQUARES = frozenset({*_PRODUCTS, "bmm", "baddbmm"})
#: Ops that read the diagonal of what they get.
_DIAGONALS = frozenset({"diagonal_copy", "diag", "trace"})
_SOFTMAX = frozenset({"_softmax", "_log_softmax"})


class _Scores(NamedTuple):
    """The result of a product: its number, its line, its rows and columns.

    One that is ``square`` and not wide counts only where the diagonal is all that is read of it.
    """

    number: int
    site: Site
    rows: int
    columns: int
    is_wide: bool
    is_square: bool


class UnreadScoreCounts:
    """Follows the results of wide products through one step; keeps no tensor alive."""

    def __init__(self) -> None:
        #: By the address of the memory. What was freed is replaced by what is made there next.
        self._known: dict[int, _Scores] = {}
        self._number = 0
        #: The numbers of those of which more than a part is needed.
        self._needed: set[int] = set()
        #: The number -> the scores, the line that reads a part first, and the elements of each part by its place.
        self._parts: dict[int, tuple[_Scores, Site, dict[Any, int]]] = {}
        #: The numbers of those of which something else than the diagonal is read.
        self._beside_diagonal: set[int] = set()

    def add(self, func: Any, arguments: Any, out: Any, site: Site) -> None:
        """An op of a line of the user's has returned ``out`` for these positional arguments."""
        name = func.overloadpacket.__name__.removesuffix("_")
        values = [one for part in arguments for one in (part if isinstance(part, list | tuple) else (part,))]
        tensors = [one for one in values if is_tensor(one)]
        read = [(one, scores) for one in tensors if (scores := self._known.get(_address(one))) is not None]
        if func._schema.is_mutable and read and read[0][0] is values[0]:
            # What is written into scores, or a part of them, reads nothing and leaves them scores.
            self._needed |= {scores.number for _, scores in read[1:]}
            return
        first = out[0] if isinstance(out, tuple) and out else out
        is_result = is_tensor(first) and first.device.type == "cpu" and first.dim() > 0
        passed: set[_Scores] = set()
        for tensor, scores in read:
            is_diagonal = scores.is_square and (name in _DIAGONALS or tensor.stride()[-1:] == (scores.columns + 1,))
            part = first if is_result and _picks_places(name, arguments, first, scores.columns) else tensor
            if is_diagonal or 2 * part.numel() <= scores.rows * scores.columns:
                parts = self._parts.setdefault(scores.number, (scores, site, {}))[2]
                # What an index picks may be other places each time.
                place = (tensor.storage_offset(), tensor.stride()) if part is tensor else len(parts)
                parts[place, tuple(part.shape)] = scores.rows if is_diagonal else part.numel()
                if not is_diagonal:
                    self._beside_diagonal.add(scores.number)
            elif is_result and first.numel() == tensor.numel() and _keeps_places(name, arguments):
                passed.add(scores)
            else:
                self._needed.add(scores.number)
        if len(passed) > 1:
            self._needed |= {scores.number for scores in passed}
        if is_result:
            self._set(first, self._made(name, arguments, first, site) or (passed.pop() if len(passed) == 1 else None))

    def _made(self, name: str, arguments: Any, out: Any, site: Site) -> _Scores | None:
        if name not in _SQUARES:
            return None
        columns = int(out.shape[-1])
        rows = out.numel() // max(1, columns)
        is_wide = name in _PRODUCTS and columns >= _WIDER * arguments[_PRODUCTS[name]].shape[-1]
        is_square = columns >= FEW_ROWS and out.shape[-2:] == (columns, columns)
        if rows < FEW_ROWS or not (is_wide or is_square):
            return None
        self._number += 1
        return _Scores(self._number, site, rows, columns, is_wide, is_square)

    def _set(self, tensor: Any, scores: _Scores | None) -> None:
        address = _address(tensor)
        if scores is not None and len(self._known) < MAX_TENSORS:
            self._known[address] = scores
            return
        self._known.pop(address, None)
        if scores is not None:
            self._needed.add(scores.number)  # it cannot be followed

    def rows(self) -> tuple[DroppedRows, ...]:
        """The lines that read a part of scores, where nothing reads the rest."""
        found = []
        for scores, (code, line), parts in self._parts.values():
            picked = -(-sum(parts.values()) // scores.columns)
            is_diagonal = scores.number not in self._beside_diagonal
            if scores.number not in self._needed and picked < scores.rows and (is_diagonal or scores.is_wide):
                found.append(
                    DroppedRows(
                        file=code.co_filename,
                        line=line,
                        function=function_name(code),
                        owner=USER,
                        rows=scores.rows,
                        picked=picked,
                        columns=scores.columns,
                        is_diagonal=is_diagonal,
                        made_at=(location_of(scores.site),),
                    )
                )
        return tuple(found)


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _picks_places(name: str, arguments: Any, out: Any, columns: int) -> bool:
    """Whether an index picks whole places of texts, by several numbers or a mask; `DroppedRowCounts` knows of rows."""
    source = arguments[0]
    if name != "index" or source.shape[-1] != columns or out.shape[-1:] != source.shape[-1:]:
        return False
    indices = [one for one in arguments[1] if one is not None]
    # Those of all dimensions pick elements, however many these are.
    picks = sum(one.dim() if one.dtype.itemsize == 1 else 1 for one in indices)
    return picks < source.dim() and (len(indices) > 1 or any(one.dim() > 1 for one in indices))


def _keeps_places(name: str, arguments: Any) -> bool:
    """Whether each element of the result is of the same place of the text as what it is computed from."""
    along_columns = name in _SOFTMAX and arguments[1] % arguments[0].dim() == arguments[0].dim() - 1
    return name in OF_ELEMENTS or along_columns
