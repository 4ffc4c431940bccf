"""Whether an evaluation builds autograd graphs: a new local tensor with a graph after one of its batches."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from perfkit._code_owner import line_of
from perfkit._location import Location
from perfkit.record.samplers.source_lookup import find_filling_lines
from perfkit.record.watchers._user_locals import locals_of, user_frames

#: Evaluation batches after which no more are checked.
_MAX_BATCHES = 20


class EvaluationGraphs:
    """Checks the local variables of the user's innermost frame; `line` is the first line that made a graph."""

    def __init__(self) -> None:
        self._batches = 0
        self._known: list[weakref.ref[Any]] = []
        self.line: Location | None = None

    def check(self, *, continues: bool) -> None:
        """An evaluation fetches its next batch; ``continues`` is False for its first.

        Before the first batch, new graphs may be the training's.
        """
        self._batches += 1
        if self.line is None and self._batches <= _MAX_BATCHES:
            line = self.new_graph()
            self.line = line if continues else None

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
