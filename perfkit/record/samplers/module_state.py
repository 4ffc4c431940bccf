"""What a module keeps of a call, and whether it drops elements or computes with other rows of a batch."""

from __future__ import annotations

from typing import Any

from perfkit.record.input_slices import version_of
from perfkit.record.program_values import is_tensor


def state_of(module: Any) -> tuple[Any, ...]:
    """Changes when a module keeps something of a call, as a tensor that it sets or fills, and with its parameters."""
    kept = (
        value
        for one in module.modules()
        for value in (*vars(one).values(), *one.buffers(recurse=False), *one.parameters(recurse=False))
    )
    return tuple((id(value), _changes_of(value)) for value in kept)


def _changes_of(value: Any) -> int:
    if is_tensor(value):
        return version_of(value)
    return len(value) if isinstance(value, list | dict) else 0


def has_active_dropout(module: Any) -> bool:
    """Whether a module, or one in it, drops elements at random now."""
    return any(
        one.training and vars(one).get("p", vars(one).get("dropout", 0))
        for one in module.modules()
        if "Dropout" in type(one).__name__ or type(vars(one).get("dropout")) is float
    )


def normalizes_batch(module: Any) -> bool:
    """Whether a module, or one in it, normalizes by the batch that its input is in."""
    return any(one.training and "BatchNorm" in type(one).__name__ for one in module.modules())
