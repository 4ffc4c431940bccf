"""Diagonal matrices that are factored or solved as dense ones, as of a Gaussian whose dimensions are independent."""

from __future__ import annotations

from typing import Any

import torch

from perfkit._code_owner import USER, function_name
from perfkit.record.program_values import is_tensor, without_modes
from perfkit.record.samplers.call_paths import Site
from perfkit.run.records import DiagonalMatrix

#: Ops that take a matrix: the place of it. Under inference_mode those that call others are what runs.
_MATRIX_AT = {
    "linalg_cholesky_ex": 0,
    "linalg_cholesky": 0,
    "linalg_solve_triangular": 0,
    "triangular_solve": 1,
    "cholesky_inverse": 0,
    "_linalg_solve_ex": 0,
    "linalg_solve": 0,
}
#: Elements that are looked at in a step: some milliseconds.
_MAX_ELEMENTS = 20_000_000


class DiagonalMatrixCounts:
    """Counts calls by line and size; keeps no tensor alive."""

    def __init__(self) -> None:
        self._looked_at = 0
        #: (line, rows) -> matrices that were diagonal, and others; and calls.
        self._found: dict[tuple[Site, int], tuple[int, bool]] = {}

    def add(self, func: Any, arguments: Any, site: Site) -> None:
        """An op of a line of the user's got these positional arguments."""
        place = _MATRIX_AT.get(func.overloadpacket.__name__)
        matrix = arguments[place] if place is not None and len(arguments) > place else None
        if not is_tensor(matrix) or matrix.device.type != "cpu" or matrix.shape[-1] < 2 or not matrix.numel():
            return
        self._looked_at += int(matrix.numel())
        if self._looked_at > _MAX_ELEMENTS:
            return
        size = int(matrix.shape[-1])
        with without_modes():
            # Those with a zero on the diagonal too could not be factored.
            is_diagonal = int(torch.count_nonzero(matrix.detach())) == matrix.numel() // size and bool(
                matrix.detach().diagonal(dim1=-2, dim2=-1).all()
            )
        calls, so_far = self._found.get((site, size), (0, True))
        self._found[site, size] = calls + 1, so_far and is_diagonal

    def rows(self) -> tuple[DiagonalMatrix, ...]:
        """The lines all of whose matrices of a size are diagonal."""
        return tuple(
            DiagonalMatrix(
                file=code.co_filename, line=line, function=function_name(code), owner=USER, size=size, calls=calls
            )
            for ((code, line), size), (calls, is_diagonal) in self._found.items()
            if is_diagonal
        )
