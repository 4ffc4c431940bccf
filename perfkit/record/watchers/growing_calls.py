"""Calls of a model, each with one position more than the call before it: a text that is written without a cache.

They come within a step, in a validation or a report, which the step that is traced by line does not have. What the
positions known before take is estimated: their share of the time from one such call to the next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from perfkit._callsite import find_callsite
from perfkit._location import Location
from perfkit.record.program_values import is_plain, unseen
from perfkit.run.records import Phase, RegrownInputs

#: Calls in a row that grow: fewer may be chance (chosen, as for calls that are steps).
_MIN_CALLS = 8


class GrowingCalls:
    """Told of each call of a module from outside of others, with its first tensor; `rows` has the lines that call."""

    def __init__(self, phase: Callable[[], Phase | None], step: Callable[[], int]) -> None:
        self._phase = phase
        self._step = step
        self._elements = 0
        #: The step and the module of the call before, and the samples and positions of its input.
        self._before: tuple[int, ...] = ()
        #: Of calls in a row that grew: their number, when the last one began, and what known positions took so far.
        self._calls = self._began_ns = self._known_ns = 0
        #: (line, phase, module) of those calls; None: there are too few yet, or no line of the user's makes them.
        self._site: tuple[Location, Phase, str] | None = None
        self._found: dict[tuple[Location, Phase, str], list[int]] = {}

    @unseen
    def add(self, module: Any, tensor: Any) -> None:
        """A module is called with this as its first tensor."""
        if not is_plain(tensor):
            return  # it may have no sizes
        elements = int(tensor.numel())
        # Most calls have as many elements as the one before, and cost this comparison.
        if elements > self._elements or self._calls:
            self._look(module, tuple(tensor.shape[:2]))
        elif elements < self._elements:
            self._before = (self._step(), id(module), *tensor.shape[:2])
            self._began_ns = time.perf_counter_ns()
        self._elements = elements

    def _look(self, module: Any, shape: tuple[int, ...]) -> None:
        now = time.perf_counter_ns()
        # Where each step has a longer input than the one before, its data grow.
        key = (self._step(), id(module), *shape)
        if len(shape) == 2 and self._before == (*key[:2], shape[0], shape[1] - 1):
            self._calls += 1
            # All but one of the positions of the call before were known before it.
            known_ns = (now - self._began_ns) * max(0, shape[1] - 2) // max(1, shape[1] - 1)
            self._known_ns += known_ns
            if self._calls == _MIN_CALLS:
                self._begin(type(module).__name__)
            elif self._site is not None:
                self._add(self._site, 1, known_ns)
        else:
            self._calls = self._known_ns = 0
            self._site = None
        self._before, self._began_ns = key, now

    def _begin(self, module: str) -> None:
        site = find_callsite(sys._getframe())
        if site is not None:
            self._site = site.at, self._phase() or "other", module
            self._add(self._site, self._calls, self._known_ns)

    def _add(self, site: tuple[Location, Phase, str], calls: int, known_ns: int) -> None:
        sums = self._found.setdefault(site, [0, 0])
        sums[0] += calls
        sums[1] += known_ns

    def rows(self, steps: int) -> tuple[RegrownInputs, ...]:
        """The lines that make such calls, with the time per step of the run, that which takes most first."""
        rows = [
            RegrownInputs(
                file=at.file,
                line=at.line or 0,
                function=at.function or "",
                owner=at.owner or "user",
                phase=phase,
                module=module,
                calls=calls,
                host_ns=round(ns / max(1, steps)),
            )
            for (at, phase, module), (calls, ns) in self._found.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.host_ns))
