"""Matrices of zeros that products multiply by: ``one_hot(ids) @ table``, a dense adjacency matrix of a graph.

`OpInputs` hands on the ops of one step. What is trained or has a graph is not looked at: its zeros may be others in the
next step. Those of attention are looked at where a mask made them: it is the same whatever is trained.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.record.samplers.equal_rows import address
from perfkit.record.samplers.followed_memory import FollowedMemory
from perfkit.run.records import SparseInput

#: Matrices of fewer elements are multiplied at once, whatever is in them (chosen).
_ELEMENTS = 10_000
#: Elements that are counted in a step: some tens of milliseconds.
_MAX_ELEMENTS = 50_000_000
#: Products whose first argument is added to the result.
_WITH_SUMMAND = ("addmm", "baddbmm")
#: The share of elements that are not zero up to which one is kept: far above what the rule asks for.
_SHARE = 0.1
_SOFTMAX = ("softmax", "_softmax")
#: Ops after a softmax whose results have its zeros: dropout, and copies of another type or order.
_KEEPING = ("mul", "native_dropout", "_to_copy", "clone")
#: The share of the zeros of a softmax whose scores are the lowest one: what a mask fills in. Scores that differ are
#: zero because they are far below the highest one, and may be others in the next step (chosen).
_FILLED = 0.95
#: From this share of the crossings of the rows and the columns that have any on, what is not zero is a block: samples
#: without their padding, and no list of pairs (chosen).
_OF_BLOCK = 0.5


class _Zeros(NamedTuple):
    """Elements of a softmax, and those that are not zero where a mask made the zeros; 0 where none did.

    ``shape`` is its last two dimensions: a product may join the first of them with others.
    """

    elements: int = 0
    nonzero: int = 0
    shape: tuple[int, int] = (0, 0)


class SparseInputCounts:
    """Counts the elements that are not zero, by line; keeps no tensor alive."""

    def __init__(self) -> None:
        self._counted = 0
        #: (line, rows and columns of a matrix, whether it is of attention) -> elements, those that are not zero,
        #: products, and whether each row has a single one, and what it is multiplied with is on the right.
        self._found: dict[tuple[Site, int, int, bool], tuple[int, int, int, bool]] = {}
        self._softmaxes = FollowedMemory(_Zeros())
        self._in_softmaxes = 0

    def follow(self, func: Any, arguments: Any, out: Any) -> None:
        """An op of the step has returned ``out``: it may be a softmax, or have its zeros."""
        name = func.overloadpacket.__name__
        result = out[0] if isinstance(out, tuple) and out else out
        if not is_tensor(result) or result.layout is not torch.strided or result.device.type != "cpu":
            return
        first = arguments[0] if arguments else None
        if name in _SOFTMAX and is_tensor(first):
            self._softmaxes.set(result, self._zeros_of(first, result))
        elif name in _KEEPING and is_tensor(first):
            self._softmaxes.set(result, self._softmaxes.of(first))
        elif not is_tensor(first) or address(first) != address(result):
            # What was freed is replaced by what is made there next.
            self._softmaxes.set(result, _Zeros())

    def _zeros_of(self, scores: Any, weights: Any) -> _Zeros:
        """What is known of a softmax of these scores."""
        elements = int(weights.numel())
        if weights.dim() < 2 or elements < _ELEMENTS or weights.dtype is torch.float16:
            return _Zeros()
        self._in_softmaxes += elements
        if self._in_softmaxes > _MAX_ELEMENTS:
            return _Zeros()
        with without_modes():
            is_set = weights != 0
            nonzero = int(torch.count_nonzero(is_set))
            if not 0 < nonzero <= _SHARE * elements:
                return _Zeros()
            is_mask = _is_mask(scores, is_set, nonzero)
        return _Zeros(elements, nonzero if is_mask else 0, (int(weights.shape[-2]), int(weights.shape[-1])))

    def add(self, func: Any, arguments: Any, site: Site) -> None:
        """A product with these positional arguments ran on a line of the user's."""
        begin = 1 if func.overloadpacket.__name__ in _WITH_SUMMAND else 0
        for at, one in enumerate(arguments[begin : begin + 2]):
            if not is_tensor(one) or one.layout is not torch.strided or one.device.type != "cpu":
                continue
            if one.dim() < 2:
                continue
            softmax = self._softmaxes.of(one)
            if softmax.elements and not one.numel() % softmax.elements:
                self._add_attention(one, site, softmax)
            elif not one.requires_grad:
                self._count(one, site, is_left=at == 0)

    def _add_attention(self, matrix: Any, site: Site, softmax: _Zeros) -> None:
        if softmax.nonzero:
            copies = int(matrix.numel()) // softmax.elements
            counts = copies * softmax.elements, copies * softmax.nonzero
            self._add((site, *softmax.shape, True), counts, is_one_hot=False)

    def _count(self, matrix: Any, site: Site, *, is_left: bool) -> None:
        elements = int(matrix.numel())
        # What is expanded in memory is counted as it is there.
        self._counted += elements
        if elements < _ELEMENTS or self._counted > _MAX_ELEMENTS:
            return
        with without_modes():
            nonzero = int(torch.count_nonzero(matrix))
            # All zeros are a state that begins: it will have others.
            if not 0 < nonzero <= _SHARE * elements:
                return
            rows = elements // matrix.shape[-1]
            is_one_hot = is_left and nonzero == rows and bool((matrix == 1).any(-1).all())
        key = site, int(matrix.shape[-2]), int(matrix.shape[-1]), False
        self._add(key, (elements, nonzero), is_one_hot=is_one_hot)

    def _add(self, key: tuple[Site, int, int, bool], counts: tuple[int, int], *, is_one_hot: bool) -> None:
        elements, nonzero, calls, single = self._found.get(key, (0, 0, 0, True))
        self._found[key] = elements + counts[0], nonzero + counts[1], calls + 1, single and is_one_hot

    def rows(self) -> tuple[SparseInput, ...]:
        """The lines with such products, and their matrices by shape."""
        return tuple(
            SparseInput(
                file=code.co_filename, line=line, function=function_name(code), owner=USER,
                shape=(height, width), elements=elements, nonzero=nonzero, calls=calls, is_one_hot=single,
                is_attention=of_softmax,
            )
            for ((code, line), height, width, of_softmax), (elements, nonzero, calls, single) in self._found.items()
        )  # fmt: skip


def _is_mask(scores: Any, is_set: Any, nonzero: int) -> bool:
    """Whether a mask of pairs, which the scores did not choose, made the zeros of a softmax of these scores."""
    zeros = is_set.numel() - nonzero
    if int(torch.count_nonzero((scores == scores.min()) & ~is_set)) < _FILLED * zeros:
        return False
    in_rows = is_set.sum(-1)
    if int(in_rows.min()) == int(in_rows.max()):
        # As many in each row are the highest scores: to choose them all are computed.
        return False
    crossings = int((is_set.any(-1).sum(-1) * is_set.any(-2).sum(-1)).sum())
    return nonzero < _OF_BLOCK * crossings
