"""Buffers that are copied as a whole to add a few elements: ``memory = torch.cat([memory[1:], new])`` in each step.

`ConstantOpLog` hands on each ``cat`` of two steps. What one has returned in the first step, and one in the second step
copies nearly alone, is a buffer, and so is what that returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from perfkit._code_owner import USER
from perfkit.record.samplers.call_paths import Site, location_of
from perfkit.run.records import RebuiltBuffer

#: A call copies a buffer if at least this share of its result comes from that, and the result has at least so many
#: elements (both chosen).
_SHARE, _ELEMENTS = 0.9, 50_000

_Results = dict[int, Callable[[], Any]]


class RebuiltBuffers:
    """Counts them by line; keeps no tensor alive."""

    def __init__(self) -> None:
        #: By their id, what calls returned in the running step, and what is a buffer if a call copies it.
        self._results: _Results = {}
        self._before: _Results = {}
        #: Line and library -> calls, elements of their results, and those that were added.
        self._found: dict[tuple[Site, str | None], tuple[int, int, int]] = {}

    def end_step(self) -> None:
        """The first step is over."""
        self._before, self._results = self._results, {}

    def is_next(self, tensors: Sequence[Any], out: Any, base_of: Callable[[Any], Any]) -> bool:
        """Whether a ``cat`` of these tensors copies a buffer; its result is known from then on.

        Not under autograd: what a graph needs cannot be written over.
        """
        largest = max(tensors, key=lambda tensor: int(tensor.numel()))
        base = base_of(largest)
        source = largest if base is None else base
        self._results[id(out)] = weakref.ref(out)
        is_next = (
            self._before.get(id(source), _gone)() is source
            and out.numel() >= _ELEMENTS
            and largest.numel() >= _SHARE * out.numel()
            and not out.requires_grad
            and not any(tensor.requires_grad for tensor in tensors)
        )
        if is_next:
            self._before[id(out)] = weakref.ref(out)
        return is_next

    def add(self, tensors: Sequence[Any], out: Any, site: Site, library: str | None) -> None:
        """Such a call came from a line of the user's, by a function of this library."""
        added = int(out.numel()) - max(int(tensor.numel()) for tensor in tensors)
        calls, elements, before = self._found.get((site, library), (0, 0, 0))
        self._found[site, library] = calls + 1, elements + int(out.numel()), before + added

    def rows(self) -> tuple[RebuiltBuffer, ...]:
        """The lines with such calls."""
        return tuple(
            RebuiltBuffer(
                file=at.file, line=at.line or 0, function=at.function or "", owner=USER,
                calls=calls, elements=elements, added=added, library=library,
            )
            for (site, library), (calls, elements, added) in self._found.items()
            for at in (location_of(site),)
        )  # fmt: skip


def _gone() -> Any:
    """Stands for the reference to a tensor that is not known."""
    return None
