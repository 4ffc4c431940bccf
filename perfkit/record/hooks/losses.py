"""Logs the loss of each step without an edit: what the step's first backward starts from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from perfkit._patches import Patches
from perfkit._raised_signals import errors_dropped
from perfkit.ranges import dynamo
from perfkit.record.program_values import is_tensor, unseen, values_in

if TYPE_CHECKING:
    from perfkit.profiler import profile

#: Integers of the size of each type of a loss.
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
#: All bits set: a NaN, but not the one that CUDA's arithmetic returns (0x7fffffff in the CUDA C++ programming guide).
_NOT_THERE = -1


class DeviceLoss:
    """A loss on its way from a CUDA device: nothing waits for the copy, and nothing asks the device about it.

    The host's memory changes when the copy is there. An event would have to be queried, which no thread may do while a
    CUDA graph is captured.
    """

    def __init__(self, loss: torch.Tensor) -> None:
        self._device = loss.device
        self._value = pinned_scalar(loss.dtype)
        self._bits = self._value.view(_BITS[loss.dtype])
        self._bits.fill_(_NOT_THERE)
        self._value.copy_(loss.detach().reshape(()), non_blocking=True)

    def read(self, *, wait: bool) -> float | None:
        """The loss; None where the copy is not there yet, unless ``wait``, which waits for the device."""
        if wait and int(self._bits) == _NOT_THERE:
            torch.cuda.synchronize(self._device)
        return None if int(self._bits) == _NOT_THERE else float(self._value)


def pinned_scalar(dtype: torch.dtype) -> torch.Tensor:
    """Memory of the host that a device writes into by itself."""
    return torch.empty((), dtype=dtype, pin_memory=True)


def log_losses(prof: profile) -> Patches:
    """Log them from now on, until the patches are undone.

    The loss on a CUDA device is copied without a sync, and read when its row is written; reading it from another device
    is a sync.
    """
    patches = Patches()
    logged = -1

    def wrapper(backward: Callable[..., None]) -> Callable[..., None]:
        @unseen
        def look(tensors: Any) -> None:
            nonlocal logged
            step = prof.step_num
            first = next(values_in(tensors), None)
            if logged < step and is_tensor(first) and first.numel() == 1:
                logged = step
                # A complex number, or a tensor without values: a loss that cannot be logged ends no training.
                with errors_dropped():
                    _log(prof, first)

        def run_backward(tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                look(tensors)
            backward(tensors, *args, **kwargs)

        dynamo.skip(run_backward.__code__)
        dynamo.leave_alone(look.__code__)
        return functools.wraps(backward)(run_backward)

    patches.wrap(torch.autograd, "backward", wrapper)
    return patches


def _log(prof: profile, loss: torch.Tensor) -> None:
    if not loss.is_cuda:
        prof.log(loss=loss.item())
    elif not torch.cuda.is_current_stream_capturing():  # else the graph would copy whenever it is replayed
        prof.log_later(DeviceLoss(loss))
