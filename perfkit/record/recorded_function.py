"""``@perfkit.profile()``: a function that trains, each call of which is recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from perfkit.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


class Decorates:
    """What makes `perfkit.profile` a decorator."""

    _running: bool

    def __call__(self, function: F) -> F:
        """Record each call of ``function``; ``function.profile`` is this profile. Another call continues the run.

        Raises:
            UsageError: it is no function, a coroutine or a generator.
        """
        interrupted = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if isinstance(function, type) or not callable(function) or any(test(function) for test in interrupted):
            raise UsageError(
                f"perfkit.profile() decorates plain functions, got {getattr(function, '__qualname__', function)}: "
                "write `with perfkit.profile():` around the loop"
            )

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._running:  # the function calls itself
                return function(*args, **kwargs)
            with cast(Any, self):
                return function(*args, **kwargs)

        recorded.profile = self  # type: ignore[attr-defined]  # read by the caller of a decorated function
        return cast(F, recorded)
