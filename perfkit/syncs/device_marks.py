"""Which tensors of a dry run are on the simulated device, and which are in pinned host memory.

A tensor of a dry run is an ordinary CPU tensor. That it counts as "on the device" is one attribute on the
Python object of its storage, which torch keeps for as long as the storage lives: views, ``.data``,
``.grad`` and saved tensors share the storage and so the mark. A tensor without a storage (sparse) carries
the mark itself, one that functorch wraps leaves it to what is inside.
"""

from __future__ import annotations

from typing import Any

import torch

_DEVICE = "_perfkit_on_device"
_PINNED = "_perfkit_pinned"

# Called on the C++ base class, this read never enters a torch function mode.
_storage_of = torch._C.TensorBase.untyped_storage

#: What that read raises for a tensor that has no storage of its own: a sparse one, a wrapper of functorch's.
_NO_STORAGE = (NotImplementedError, RuntimeError)

# Private to torch: a test tells when they move.
_functorch: Any = torch._C._functorch


def _carrier(tensor: torch.Tensor) -> Any:
    try:
        return _storage_of(tensor)
    except _NO_STORAGE:
        return _carrier_without_storage(tensor)


def _carrier_without_storage(tensor: torch.Tensor) -> Any:
    if _functorch.is_functorch_wrapped_tensor(tensor):  # inside vmap, grad: what is wrapped comes out again
        return _carrier(_functorch.get_unwrapped(tensor))
    return tensor  # sparse


def on_device(tensor: torch.Tensor) -> bool:
    """Whether the tensor counts as being on the simulated device."""
    # Written out, as each op of a dry run asks this of its inputs.
    try:
        return getattr(_storage_of(tensor), _DEVICE, False)
    except _NO_STORAGE:
        return getattr(_carrier_without_storage(tensor), _DEVICE, False)


def put_on_device(tensor: torch.Tensor) -> None:
    """Count the tensor, and all that share its storage, as being on the simulated device."""
    setattr(_carrier(tensor), _DEVICE, True)


def put_all_on_device(value: Any) -> None:
    """Count a tensor, or each tensor of a list or tuple, as being on the simulated device; others are passed over."""
    if isinstance(value, torch.Tensor):
        # Written out, as each op of a dry run does this with its result.
        try:
            _storage_of(value)._perfkit_on_device = True  # type: ignore[attr-defined]  # _DEVICE
        except _NO_STORAGE:
            setattr(_carrier_without_storage(value), _DEVICE, True)
    elif isinstance(value, (list, tuple)):
        for item in value:
            put_all_on_device(item)


def take_off_device(tensor: torch.Tensor) -> None:
    """Count the tensor as being on the host again."""
    carrier = _carrier(tensor)
    if getattr(carrier, _DEVICE, False):
        setattr(carrier, _DEVICE, False)


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the tensor counts as lying in pinned host memory."""
    return getattr(_carrier(tensor), _PINNED, False)


def pin(tensor: torch.Tensor) -> None:
    """Count the tensor as lying in pinned host memory."""
    setattr(_carrier(tensor), _PINNED, True)


def any_on_device(value: Any) -> bool:
    """Whether a device tensor is in ``value``: a tensor, or a list, tuple or dict of them, to any depth."""
    if isinstance(value, torch.Tensor):
        return on_device(value)
    if isinstance(value, (list, tuple)):
        return any(any_on_device(item) for item in value)
    if isinstance(value, dict):
        return any(any_on_device(item) for item in value.values())
    return False
