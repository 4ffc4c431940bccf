"""What the schema of an op says about its arguments and its results."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from perfkit._torch_versions import writes

_NESTED = (tuple, list, dict)


class OpSchema(NamedTuple):
    """What an op's schema says: torch makes new objects of it each time that it is asked."""

    #: Place and name of each argument that it writes into.
    writes: tuple[tuple[int, str], ...]
    #: Whether it returns its input's memory, unwritten.
    is_view: bool
    #: Whether it draws random numbers.
    draws: bool


@functools.lru_cache(maxsize=4096)  # torch has some 3,000 ops
def schema_of(func: Any) -> OpSchema:
    """The schema of an op."""
    schema = func._schema
    return OpSchema(
        tuple((at, argument.name) for at, argument in enumerate(schema.arguments) if writes(argument)),
        any(one.alias_info is not None and not writes(one) for one in schema.returns),
        torch.Tag.nondeterministic_seeded in func.tags,
    )


def written_by(schema: OpSchema, inputs: tuple[Any, Any]) -> list[Any]:
    """The tensors that an op writes into."""
    arguments, named = inputs
    written: list[Any] = []
    for at, name in schema.writes:
        written += flattened(named[name] if name in named else arguments[at : at + 1])
    return written


def flattened(value: Any) -> list[Any]:
    """The values in nested tuples, lists and dicts, those of dicts with their keys."""
    found: list[Any] = []
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    elif not isinstance(value, _NESTED):
        return [value]
    for one in value:
        if isinstance(one, _NESTED):
            found += flattened(one)
        else:
            found.append(one)
    return found


def tensors_in(value: Any) -> list[Any]:
    """The tensors among these values."""
    return [one for one in flattened(value) if isinstance(one, torch.Tensor)]
