"""Matrices of zeros that products multiply by: ``one_hot(ids) @ table``, a dense adjacency matrix of a graph.

`OpInputs` hands on the products of one step. What is trained or has a graph is not looked at: its zeros may be others
in the next step.
"""

from __future__ import annotations

from typing import Any

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.run.records import SparseInput

#: Matrices of fewer elements are multiplied at once, whatever is in them (chosen).
_ELEMENTS = 10_000
#: Elements that are counted in a step: some tens of milliseconds.
_MAX_ELEMENTS = 50_000_000
#: Products whose first argument is added to the result.
_WITH_SUMMAND = ("addmm", "baddbmm")
#: The share of elements that are not zero up to which one is kept: far above what the rule asks for.
_SHARE = 0.1


class SparseInputCounts:
    """Counts the elements that are not zero, by line; keeps no tensor alive."""

    def __init__(self) -> None:
        self._counted = 0
        #: (line, rows and columns of a matrix) -> elements, those that are not zero, products, and whether each row has
        #: a single one, and what it is multiplied with is on the right.
        self._found: dict[tuple[Site, int, int], tuple[int, int, int, bool]] = {}

    def add(self, func: Any, arguments: Any, site: Site) -> None:
        """A product with these positional arguments ran on a line of the user's."""
        begin = 1 if func.overloadpacket.__name__ in _WITH_SUMMAND else 0
        for at, one in enumerate(arguments[begin : begin + 2]):
            if not is_tensor(one) or one.layout is not torch.strided or one.device.type != "cpu":
                continue
            if one.dim() > 1 and not one.requires_grad:
                self._count(one, site, is_left=at == 0)

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
        key = site, int(matrix.shape[-2]), int(matrix.shape[-1])
        before = self._found.get(key, (0, 0, 0, True))
        self._found[key] = before[0] + elements, before[1] + nonzero, before[2] + 1, before[3] and is_one_hot

    def rows(self) -> tuple[SparseInput, ...]:
        """The lines with such products, and their matrices by shape."""
        return tuple(
            SparseInput(
                file=code.co_filename, line=line, function=function_name(code), owner=USER,
                shape=(height, width), elements=elements, nonzero=nonzero, calls=calls, is_one_hot=single,
            )
            for ((code, line), height, width), (elements, nonzero, calls, single) in self._found.items()
        )  # fmt: skip
