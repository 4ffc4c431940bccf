"""Inputs of any batch size, made from one example, and the call of a model with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from perfkit.errors import UsageError


def check_example(example: Any) -> None:
    """Check that batches can be made from ``example``.

    Raises:
        UsageError: it has no tensor with a batch dimension, or its batch is empty.
    """
    if _makes_batches(example):
        return
    rows = _rows(example)
    if rows is None:
        raise UsageError(
            "example must hold a tensor whose first dimension is the batch, or be a callable that takes a batch size "
            f"and returns the inputs; got {type(example).__name__}"
        )
    if rows == 0:
        raise UsageError("example must hold at least one sample, its batch dimension is 0")


def make_inputs(example: Any, size: int, device: torch.device | None) -> Any:
    """The model's inputs at batch size ``size``, on ``device``; None leaves them where they are.

    Rows of the example are repeated in order. They are copies: an expanded row would stay in the cache, unlike the rows
    of a real batch.
    """
    if _makes_batches(example):
        inputs = example(size)
    else:
        rows = _rows(example)
        assert rows, "checked by check_example"
        index = torch.arange(size) % rows

        def resized(tensor: torch.Tensor) -> torch.Tensor:
            is_batch = tensor.dim() > 0 and tensor.shape[0] == rows
            return tensor.detach().index_select(0, index.to(tensor.device)) if is_batch else tensor

        inputs = _mapped(example, resized)
    return inputs if device is None else _mapped(inputs, lambda tensor: tensor.to(device))


def call_with(model: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    """One call of the model: with keywords from a mapping, positions from a tuple or list, else with one argument."""
    if isinstance(inputs, Mapping):
        keywords = dict(inputs)
        return lambda: model(**keywords)
    if isinstance(inputs, (tuple, list)):
        return lambda: model(*inputs)
    return lambda: model(inputs)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested mappings, tuples and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)


def _makes_batches(example: Any) -> bool:
    return callable(example) and not isinstance(example, (torch.Tensor, Mapping, torch.nn.Module))


def _rows(example: Any) -> int | None:
    """The example's own batch size: the first dimension of its first tensor that has one."""
    return next((tensor.shape[0] for tensor in tensors_in(example) if tensor.dim() > 0), None)


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, change) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(part, change) for part in value)
    return value
