"""The size of every batch of a loader and of every input of a model, and the share of padding in some batches."""

from __future__ import annotations

import weakref
from collections import UserDict
from collections.abc import Callable
from typing import Any

import torch

from perfkit.record.clock.step_clock import StepClock
from perfkit.record.program_values import is_plain, is_tensor, own_attribute, parts_of, unseen
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
            batch = own_attribute(batch, "data")
        elif issubclass(kind, (tuple, list, dict)):
            batch = next(parts_of(batch), None)
        else:
            break
    return batch if is_tensor(batch) else None


def _may_be_padded(tensor: Any) -> bool:
    """Whether it has rows of whole numbers, and looking at them takes a few ms at most."""
    if not is_plain(tensor) or tensor.dim() != 2 or tensor.is_floating_point() or tensor.device.type != "cpu":
        return False
    return bool(min(tensor.shape) >= 2 and tensor.numel() <= 1_000_000)


class BatchWatch:
    """Records the size of each batch and of each model's input, and counts the padding of some batches."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._tensor = torch.Tensor
        #: Step -> elements of the first tensors of its batches; `StepRows` removes what it has used.
        self.elements: dict[int, int] = {}
        #: Step -> calls of modules from outside of any other, and elements of their first tensors; likewise.
        self.calls: dict[int, tuple[int, int]] = {}
        self._last: Callable[[], Any] | None = None
        self._inspected = self._counted = 0
        self._elements = self._padded = 0

    @unseen
    def add(self, batch: Any) -> None:
        """A batch of the running step; called for every batch."""
        tensor = batch if type(batch) is self._tensor else first_tensor(batch)
        if tensor is not None:
            step, elements = self._clock.step_num, self.elements
            elements[step] = elements[step] + tensor.numel() if step in elements else tensor.numel()
            if self._is_due(step):
                self._last = weakref.ref(tensor)

    @unseen
    def add_call(self, inputs: tuple[Any, Any]) -> Any:
        """A module is called in the running step with these arguments; called for every call from outside of others.

        Returns its first tensor, None where it has none.
        """
        positional, named = inputs
        # transformers' models get positions and masks before it.
        tensor = first_tensor(positional or named.get("input_ids", named))
        step = self._clock.step_num
        calls, elements = self.calls.get(step, (0, 0))
        self.calls[step] = calls + 1, elements + (int(tensor.numel()) if tensor is not None else 0)
        # A loop without a DataLoader. Where calls are the steps, the next one has replaced the input before the pause.
        if tensor is not None and step not in self.elements and _may_be_padded(tensor) and self._is_due(step):
            self._last = lambda: tensor
        return tensor

    def _is_due(self, step: int) -> bool:
        """Whether a batch of this step is inspected in the clock's pause after it."""
        return step + 1 >= self._clock.due and self._inspected < _MAX_BATCHES

    @unseen
    def count_padding(self) -> None:
        """Count the padding of the last batch or input, if it still exists; called between two steps."""
        last, self._last = self._last, None
        tensor = last() if last is not None else None
        if tensor is None:
            return
        self._inspected += 1
        if not _may_be_padded(tensor):
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
