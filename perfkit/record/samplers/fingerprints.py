"""What tells one input of a call from another: the memory of its tensors, or their numbers; and the random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perfkit._raised_signals import leave_to_program
from perfkit.record.program_values import is_plain, is_tensor, without_modes

#: Bytes that are read of one tensor, and in all (chosen): a step that is traced by line takes a quarter of a second
#: more for them at most.
_MOST, _MOST_IN_ALL = 2**24, 2**28


def fingerprint(value: Any) -> Any:
    """Equal for two values that are certainly the same."""
    if is_tensor(value):
        try:
            return (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value._version)
        except RuntimeError:
            return object()  # no memory or no versions: fake, sparse, of a transform or of inference mode
    if value is None or issubclass(type(value), bool | int | float | str | bytes):
        return (type(value), value)
    return object()  # equal to nothing


class Contents:
    """Fingerprints by what tensors hold, in whatever memory; of a certain number of bytes in all."""

    def __init__(self) -> None:
        self._left = _MOST_IN_ALL

    def of(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """Those of a call's values; None where one of them is on a device, too large, or no plain tensor."""
        tensors = [value for value in values if is_tensor(value)]
        if not all(is_plain(one) and one.device.type == "cpu" for one in tensors):
            return None
        sizes = [one.numel() * one.element_size() for one in tensors]
        if max(sizes, default=0) > _MOST or sum(sizes) > self._left:
            return None
        self._left -= sum(sizes)
        return tuple(_contents_of(value) if is_tensor(value) else fingerprint(value) for value in values)


def _contents_of(tensor: Any) -> tuple[Any, ...]:
    with without_modes():
        whole = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return (tuple(tensor.shape), tensor.dtype, hash(whole.numpy().tobytes()))


def random_state() -> bytes | None:
    """The state of the generator that ops of the CPU draw from; equal as long as none was drawn.

    None inside of a transform of `torch.func`, where torch gives no tensor with memory.
    """
    try:
        with without_modes():  # a FakeTensorMode would make a tensor without values of it
            return torch.get_rng_state().numpy().tobytes()
    except RuntimeError as error:
        leave_to_program(error)
        return None
