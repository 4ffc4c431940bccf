"""The size of every batch of a loader and of every input of a model, and the share of padding in some batches."""

from __future__ import annotations

import weakref
from collections import UserDict
from typing import Any

import torch

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.program_values import is_tensor, parts_of, unseen
from perfkit.run.records import Padding

#: Maximum nesting of containers in which a batch's first tensor is looked up.
_MAX_DEPTH = 4
#: Maximum of inspected batches; more would not change the share by much.
_MAX_BATCHES = 40


def first_tensor(batch: Any) -> Any:
    """The first tensor of a batch, also inside tuples, lists and dicts; None: it has none, or code of its own."""
    for _ in range(_MAX_DEPTH):
        kind = type(batch)
        if issubclass(kind, UserDict):  # transformers' BatchEncoding
            batch = vars(batch).get("data")
        elif issubclass(kind, (tuple, list, dict)):
            batch = next(parts_of(batch), None)
        else:
            break
    return batch if is_tensor(batch) else None


class BatchWatch:
    """Records the size of each batch and of each model's input, and counts the padding of some batches."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._tensor = torch.Tensor
        #: Step -> elements of the first tensors of its batches; `StepRows` removes what it has used.
        self.elements: dict[int, int] = {}
        #: Step -> calls of modules from outside of any other, and elements of their first tensors; likewise.
        self.calls: dict[int, tuple[int, int]] = {}
        self._last: weakref.ref[Any] | None = None
        self._inspected = self._counted = 0
        self._elements = self._padded = 0

    @unseen
    def add(self, batch: Any) -> None:
        """A batch of the running step; called for every batch."""
        tensor = batch if type(batch) is self._tensor else first_tensor(batch)
        if tensor is not None:
            step, elements = self._clock.step_num, self.elements
            elements[step] = elements[step] + tensor.numel() if step in elements else tensor.numel()
            if step + 1 >= self._clock.due and self._inspected < _MAX_BATCHES:
                self._last = weakref.ref(tensor)  # inspected in the clock's pause after this step

    @unseen
    def add_call(self, inputs: tuple[Any, Any]) -> None:
        """A module is called in the running step with these arguments; called for every call from outside of others."""
        positional, named = inputs
        tensor = first_tensor(positional or named)
        step = self._clock.step_num
        calls, elements = self.calls.get(step, (0, 0))
        self.calls[step] = calls + 1, elements + (int(tensor.numel()) if tensor is not None else 0)

    @unseen
    def count_padding(self) -> None:
        """Count the padding of the last batch, if it still exists; called between two steps."""
        last, self._last = self._last, None
        tensor = last() if last is not None else None
        if tensor is None:
            return
        self._inspected += 1
        if tensor.dim() != 2 or tensor.is_floating_point() or tensor.device.type != "cpu":
            return
        if min(tensor.shape) < 2 or tensor.numel() > 1_000_000:  # a few ms
            return
        import numpy  # importing perfkit does not import numpy

        self._counted += 1
        # A copy: torch resizes no memory that numpy has seen.
        rows = tensor.clone().numpy()
        ends, counts = numpy.unique(rows[:, -1], return_counts=True)
        pad = ends[counts.argmax()]
        # The padding is the number in which most rows end; another row is as long as the batch.
        reversed_ = rows[:, ::-1] != pad
        run = reversed_.argmax(axis=1)
        run[~reversed_.any(axis=1)] = rows.shape[1]
        if counts.max() >= len(rows) / 2:
            self._padded += int(run.sum())
        self._elements += rows.size

    @property
    def is_padded(self) -> bool:
        """Whether a batch had padding."""
        return self._padded > 0

    @property
    def padding(self) -> Padding | None:
        """The counts; None where no batch had rows of integers."""
        if not self._counted:
            return None
        return Padding(batches=self._counted, elements=self._elements, padded=self._padded)
