"""Commands whose options are the fields of one Struct."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import msgspec

Options = TypeVar("Options", bound=msgspec.Struct)


def takes_options(options_type: type[Options]) -> Callable[[Callable[[Options], int]], Callable[..., int]]:
    """Make a typer command of a function of one Struct: each field is an option, declared by its annotation."""
    hints = get_type_hints(options_type, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.required else _default(field),
            annotation=hints[field.name],
        )
        for field in msgspec.structs.fields(options_type)
    ]

    def decorate(function: Callable[[Options], int]) -> Callable[..., int]:
        @wraps(function)
        def command(**values: Any) -> int:
            return function(options_type(**values))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
