"""Whether an evaluation builds autograd graphs.

After one of its batches a local variable has a graph that is new; or it called a module that trains while gradients
were enabled, and kept nothing of the result.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from perfkit._callsite import find_callsite
from perfkit._code_owner import line_of
from perfkit._location import Location
from perfkit._raised_signals import errors_dropped
from perfkit.record.samplers.source_lookup import find_filling_lines
from perfkit.record.watchers._user_locals import locals_of, user_frames

#: Evaluation batches after which no more are checked.
_MAX_BATCHES = 20


class EvaluationGraphs:
    """Checks the locals of the user's innermost frame, and calls; `line` is the first line that made a graph."""

    def __init__(self) -> None:
        self._batches = 0
        self._known: list[weakref.ref[Any]] = []
        #: The line of the first call since the last batch.
        self._called: Location | None = None
        self.line: Location | None = None

    def check(self, *, continues: bool) -> None:
        """An evaluation fetches its next batch; ``continues`` is False for its first.

        Before the first batch, new graphs may be the training's.
        """
        self._batches += 1
        if self.line is None and self._batches <= _MAX_BATCHES:
            line = self.new_graph() or self._called
            self.line = line if continues else None
        self._called = None

    def add_call(self, module: Any) -> None:
        """An evaluation calls this module with gradients enabled."""
        if self.line is not None or self._called is not None or self._batches > _MAX_BATCHES:
            return
        with errors_dropped():  # the program's own module answers
            if any(parameter.requires_grad for parameter in module.parameters()):
                site = find_callsite(sys._getframe())
                self._called = site.at if site is not None else None

    def end(self) -> None:
        """An evaluation asks for gradients itself: its graphs are needed."""
        self._batches, self.line = _MAX_BATCHES + 1, None

    def new_graph(self) -> Location | None:
        """The line that made a graph which the last check did not see."""
        found = [
            (name, value, frame.f_code, line_of(frame))
            for frame in user_frames()[:1]
            for name, value in locals_of(frame)
            if type(value) is torch.Tensor and not value.is_leaf
        ]
        known = [ref() for ref in self._known]
        self._known = [weakref.ref(value) for _, value, _, _ in found]
        for name, value, code, line in found:
            if not any(value is one for one in known):
                here = Location(file=code.co_filename, line=line, function=code.co_name)
                return next(iter(find_filling_lines(name, (code.co_filename,))), here)
        return None
