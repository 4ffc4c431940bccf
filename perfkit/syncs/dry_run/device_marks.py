"""Which tensors of a dry run are on the simulated device, and which are in pinned host memory.

A tensor of a dry run is an ordinary CPU tensor. The mark "on the device" is one attribute on the Python object of its
storage, which torch keeps for as long as the storage lives: views, ``.data``, ``.grad`` and saved tensors share the
storage and so the mark. A tensor without a storage (sparse) has the mark itself; for a tensor that functorch wraps,
the wrapped one has it.

The mark of a script that requests cuda outlives its dry run: what it moved to the device in one is there in the next,
too. What a script on the CPU names in ``device_of=`` is on the device for that call of `detect_syncs` alone, so each
call has a mark of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import torch

_DEVICE = "_perfkit_on_device"
_PINNED = "_perfkit_pinned"


class _MarksOfThread(threading.local):
    """``kind``: the mark of this thread's dry run; a number is the scope of one that follows a script on the CPU."""

    kind: Literal["simulated"] | int = 0


_marks = _MarksOfThread()


def begin(*, simulate: bool, scope: int) -> None:
    """Set and read the marks of one kind of dry run in this thread; without ``simulate`` those of ``scope``."""
    _marks.kind = "simulated" if simulate else scope


# Called on the C++ base class, this read never enters a torch function mode.
_storage_of = torch._C.TensorBase.untyped_storage

#: What that read raises for a tensor that has no storage of its own: a sparse one, a wrapper of functorch's.
_NO_STORAGE = (NotImplementedError, RuntimeError)

# Private to torch; a test fails when they move.
_functorch: Any = torch._C._functorch


def _carrier(tensor: torch.Tensor) -> Any:
    try:
        return _storage_of(tensor)
    except _NO_STORAGE:
        return _carrier_without_storage(tensor)


def _carrier_without_storage(tensor: torch.Tensor) -> Any:
    if _functorch.is_functorch_wrapped_tensor(tensor):  # inside vmap and grad
        return _carrier(_functorch.get_unwrapped(tensor))
    return tensor  # sparse


def on_device(tensor: torch.Tensor) -> bool:
    """Whether the tensor is marked as on the simulated device."""
    # Without a call of _carrier, because each op of a dry run does this with its inputs.
    try:
        return getattr(_storage_of(tensor), _DEVICE, None) == _marks.kind
    except _NO_STORAGE:
        return getattr(_carrier_without_storage(tensor), _DEVICE, None) == _marks.kind


def mark_on_device(value: Any) -> None:
    """Mark a tensor, or each tensor of a list, tuple or dict, and all that share its storage, as on the device."""
    if isinstance(value, torch.Tensor):
        # Without a call of _carrier, because each op of a dry run does this with its result.
        try:
            _storage_of(value)._perfkit_on_device = _marks.kind  # type: ignore[attr-defined]  # _DEVICE
        except _NO_STORAGE:
            setattr(_carrier_without_storage(value), _DEVICE, _marks.kind)
    else:
        _for_each(value, mark_on_device)


def _for_each(value: Any, action: Callable[[Any], None]) -> None:
    if isinstance(value, (list, tuple)):
        for item in value:
            action(item)
    elif isinstance(value, dict):
        for item in value.values():
            action(item)


def mark_on_host(tensor: torch.Tensor) -> None:
    """Mark the tensor as on the host again."""
    carrier = _carrier(tensor)
    if getattr(carrier, _DEVICE, None) is not None:
        setattr(carrier, _DEVICE, None)


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the tensor is marked as in pinned host memory."""
    return getattr(_carrier(tensor), _PINNED, False)


def mark_pinned(value: Any) -> None:
    """Mark a tensor, or each tensor of a list, tuple or dict, as in pinned host memory."""
    if isinstance(value, torch.Tensor):
        setattr(_carrier(value), _PINNED, True)
    else:
        _for_each(value, mark_pinned)


def any_on_device(value: Any) -> bool:
    """Whether a tensor, or any tensor in lists, tuples and dicts of any depth, is marked as on the device."""
    if isinstance(value, torch.Tensor):
        return on_device(value)
    if isinstance(value, (list, tuple)):
        return any(any_on_device(item) for item in value)
    if isinstance(value, dict):
        return any(any_on_device(item) for item in value.values())
    return False
