"""Whether the inputs of calls are parts of the same tensors: a loop over samples, or over the rows of a batch."""

from __future__ import annotations

import sys
from typing import Any

import torch

from perfkit._code_owner import USER, frames_outwards, owner_of
from perfkit._raised_signals import leave_to_program
from perfkit.record.program_values import is_tensor, unseen, values_in
from perfkit.record.samplers.sample_loops import items_of_loop

#: Calls that are looked at: as many that go through the same tensors are no accident. Each look takes some µs.
_LOOKS = 64


def slices_of(tensors: list[torch.Tensor]) -> tuple[Any, ...] | None:
    """Equal for inputs that are parts of the same tensors, with the same shapes; None where one of them is not a slice.

    A tensor that was written in between is another one: each part may depend on the answer to the part before.
    """
    if not tensors or not all(map(_is_slice, tensors)):
        return None
    return tuple((tuple(one.shape), one.untyped_storage().data_ptr(), version_of(one)) for one in tensors)


def version_of(tensor: torch.Tensor) -> int:
    """How often it was changed in place; 0 for a tensor of inference mode, which does not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _is_slice(tensor: torch.Tensor) -> bool:
    """Whether it is one of several equal parts that follow each other in memory."""
    whole = tensor.untyped_storage().nbytes()
    own = tensor.numel() * tensor.element_size()
    if not own or whole < 2 * own or _has_several_rows(tensor):
        return False
    return bool(tensor.is_contiguous() and tensor.storage_offset() % tensor.numel() == 0) or _is_selected(tensor)


def _has_several_rows(tensor: torch.Tensor) -> bool:
    """Whether it is some rows of a table, as a batch is; one row, or a piece of a text, is a sample.

    What a tensor that was made in inference mode is a view of is not known.
    """
    base = tensor._base
    return (
        base is not None and base.dim() == tensor.dim() > 1 and base.shape[1:] == tensor.shape[1:] and len(tensor) > 1
    )


def _is_selected(tensor: torch.Tensor) -> bool:
    """Whether it is one index of a dimension of another tensor: a frame of each video of a batch."""
    base = tensor._base
    if base is None or base.dim() != tensor.dim() + 1:
        return False
    layout = [*zip(base.shape, base.stride(), strict=True)]
    own = [*zip(tensor.shape, tensor.stride(), strict=True)]
    return any(layout[:at] + layout[at + 1 :] == own for at in range(base.dim()))


class InputSlices:
    """Looks at the inputs of the first calls of a module; keeps none of them alive."""

    def __init__(self) -> None:
        self._looks = self._same = 0
        self._last: tuple[Any, ...] | None = None
        self._offset = -1
        self._items = 0
        #: The shapes of all inputs so far; None once they differ, or are of several samples.
        self._shapes: list[tuple[int, ...]] | None = []

    @property
    def items(self) -> int | None:
        """The most items that a loop around the calls goes through, one sample of one shape per call; None: no loop.

        The step that is traced by line knows that of one call only, which may be the first of a search, or the last.
        """
        return self._items or None if self._shapes is not None else None

    @property
    def share(self) -> float | None:
        """The share (0 to 1) of calls that got the next part of the tensors of the call before; None: too few calls."""
        return self._same / (self._looks - 1) if self._looks > 8 else None

    @unseen
    def look(self, module: Any, inputs: Any) -> None:
        """The module is called with these arguments."""
        if self._looks >= _LOOKS:
            return
        self._looks += 1
        try:
            tensors = [value for value in values_in(inputs) if is_tensor(value)]
            slices = slices_of(tensors)
            offset = int(tensors[0].storage_offset()) if slices is not None else -1
        except Exception as error:  # noqa: BLE001 - a tensor without memory (fake, sparse)
            leave_to_program(error)
            slices, offset = None, -1
        self._same += slices is not None and slices == self._last and offset > self._offset
        self._last, self._offset = slices, offset
        try:
            self._look_at_loop(module, list(values_in(inputs)))
        except Exception as error:  # noqa: BLE001 - source of any form, inputs of any kind
            leave_to_program(error)
            self._shapes = None

    def _look_at_loop(self, module: Any, values: list[Any]) -> None:
        """Compare the shapes with those before; the source is read at the 1st, 2nd, 4th, 8th ... call only."""
        tensors = [value for value in values if is_tensor(value)]
        shapes = [tuple(one.shape) for one in tensors]
        one_sample = bool(shapes) and len(tensors) == len(values) and all(shape and shape[0] == 1 for shape in shapes)
        if self._shapes is None or not one_sample or (self._shapes and shapes != self._shapes):
            self._shapes = None
        else:
            self._shapes = shapes
            if self._looks & (self._looks - 1) == 0:
                frames = (one for one in frames_outwards(sys._getframe()) if owner_of(one.f_code.co_filename) == USER)
                frame = next(frames, None)
                self._items = max(self._items, (items_of_loop(frame, module) or 0) if frame is not None else 0)
