"""Whether the inputs of calls are parts of the same tensors: a loop over samples, or over the rows of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

#: Calls that are looked at: as many that go through the same tensors are no accident. Each look takes some µs.
_LOOKS = 64


def values_in(values: Any) -> Iterator[Any]:
    """The values in tuples, lists and dicts."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        for value in values:
            yield from values_in(value)
    else:
        yield values


def slices_of(tensors: list[torch.Tensor]) -> tuple[Any, ...] | None:
    """Equal for inputs that are parts of the same tensors, with the same shapes; None where one of them is no slice."""
    if not tensors or not all(map(_is_slice, tensors)):
        return None
    return tuple((tuple(one.shape), one.untyped_storage().data_ptr()) for one in tensors)


def _is_slice(tensor: torch.Tensor) -> bool:
    """Whether it is one of several equal parts that follow each other in memory."""
    whole = tensor.untyped_storage().nbytes()
    own = tensor.numel() * tensor.element_size()
    return bool(tensor.is_contiguous() and own and whole >= 2 * own and tensor.storage_offset() % tensor.numel() == 0)


class InputSlices:
    """Looks at the inputs of the first calls of a module; keeps none of them alive."""

    def __init__(self) -> None:
        self._looks = self._same = 0
        self._last: tuple[Any, ...] | None = None
        self._offset = -1

    @property
    def share(self) -> float | None:
        """The share (0 to 1) of calls that got the next part of the tensors of the call before; None: too few calls."""
        return self._same / (self._looks - 1) if self._looks > 8 else None

    def look(self, inputs: Any) -> None:
        """The module is called with these arguments."""
        if self._looks >= _LOOKS:
            return
        self._looks += 1
        try:
            tensors = [value for value in values_in(inputs) if isinstance(value, torch.Tensor)]
            slices = slices_of(tensors)
            offset = int(tensors[0].storage_offset()) if slices is not None else -1
        except Exception:  # noqa: BLE001 - a tensor without memory (fake, sparse)
            slices, offset = None, -1
        self._same += slices is not None and slices == self._last and offset > self._offset
        self._last, self._offset = slices, offset
