"""What the loader's batches are like: how large in every step, and now and then how much of one is padding."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from perfkit import _env
from perfkit.record.clock.step_clock import StepClock
from perfkit.run.records import Padding

#: Containers in containers that are opened to find a batch's first tensor.
_DEEP = 4
#: Batches that are looked at; more would not change the share by much.
_LOOKS = 40


def first_tensor(batch: Any) -> Any:
    """The first tensor of a batch: of a tuple, a list or a dict the first value's; None where there is none."""
    for _ in range(_DEEP):
        kind = type(batch)
        if kind is tuple or kind is list:
            batch = batch[0] if batch else None
        elif isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        else:
            break
    return batch if hasattr(batch, "numel") and hasattr(batch, "shape") else None


class BatchWatch:
    """Notes the size of each batch, and counts the padding of some."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._tensor = getattr(_env.torch_if_loaded(), "Tensor", None)
        #: Step -> elements of the first tensors of its batches; whoever makes the step's row takes it out.
        self.elements: dict[int, int] = {}
        self._last: weakref.ref[Any] | None = None
        self._looks = self._looked = 0
        self._elements = self._padded = 0

    def came(self, batch: Any) -> None:
        """A batch came for the running step; called for every batch."""
        tensor = batch if type(batch) is self._tensor else first_tensor(batch)
        if tensor is not None:
            step, elements = self._clock.step_num, self.elements
            elements[step] = elements[step] + tensor.numel() if step in elements else tensor.numel()
            if step + 1 >= self._clock.due and self._looks < _LOOKS:
                self._last = weakref.ref(tensor)  # the clock pauses after this step, and then it is looked at

    def look(self) -> None:
        """Count the padding of the last batch, if it is still there; called between two steps."""
        last, self._last = self._last, None
        tensor = last() if last is not None else None
        if tensor is None:
            return
        self._looks += 1
        if tensor.dim() != 2 or tensor.is_floating_point() or tensor.device.type != "cpu":
            return
        if min(tensor.shape) < 2 or tensor.numel() > 1_000_000:  # a few ms at the most
            return
        self._looked += 1
        rows = tensor.numpy()
        ends, counts = _distinct(rows[:, -1])
        pad = ends[counts.argmax()]
        # A row that ends in its own number may be as long as the batch; the padding is what most rows end in.
        reversed_ = rows[:, ::-1] != pad
        run = reversed_.argmax(axis=1)
        run[~reversed_.any(axis=1)] = rows.shape[1]
        if counts.max() >= len(rows) / 2:
            self._padded += int(run.sum())
        self._elements += rows.size

    @property
    def padding(self) -> Padding | None:
        """What was counted; None where no batch was one of rows of whole numbers."""
        if not self._looked:
            return None
        return Padding(batches=self._looked, elements=self._elements, padded=self._padded)


def _distinct(values: Any) -> tuple[Any, Any]:
    import numpy

    distinct, counts = numpy.unique(values, return_counts=True)
    return distinct, counts
