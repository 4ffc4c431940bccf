"""What ``@perfkit.range`` does with functions, methods, callables and nn.Modules.

A decorated function stays the user's own object. `trampoline` replaces its code while something listens.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any, cast

from perfkit.errors import UsageError
from perfkit.ranges import dynamo, listeners
from perfkit.ranges.trampoline import DecoratedFunction

if TYPE_CHECKING:
    from perfkit.ranges.range_objects import Range


def decorate(target: Any, made: Range) -> Any:
    """Put a range around a function, a method, a callable, or the ``forward`` of an nn.Module.

    Returns:
        ``target`` itself where it can be changed in place, else what replaces it.

    Raises:
        UsageError: ``target`` is none of these.
    """
    if listeners.disabled:
        return target
    if isinstance(target, types.FunctionType):
        return _decorate_function(target, made)
    if isinstance(target, (staticmethod, classmethod)):
        inner = decorate(target.__func__, made)
        return target if inner is target.__func__ else type(target)(inner)
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        return types.MethodType(_decorated_copy(target.__func__, made), target.__self__)
    if is_module(target):
        return _decorate_module(target, made)
    if callable(target) and not isinstance(target, type):
        return _decorate_function(_function_of(target), made)
    if isinstance(target, type):
        raise UsageError(
            f"perfkit.range decorates functions, methods and nn.Module classes or instances. {target.__qualname__} is "
            "a class without a forward() that a range could surround: write @perfkit.range above the methods to time"
        )
    raise UsageError(
        f"perfkit.range decorates functions, methods and nn.Module classes or instances, "
        f"got {target!r} ({type(target).__name__})"
    )


def name_of(target: Any) -> str:
    """The default name of a range around ``target``: its ``__qualname__``, for a module that of its class."""
    for candidate in (getattr(target, "__func__", target), getattr(target, "func", None), type(target)):
        name = getattr(candidate, "__qualname__", None)
        if isinstance(name, str):
            return name
    return type(target).__name__


def is_module(target: Any) -> bool:
    """Whether ``target`` is an nn.Module class or instance; does not import torch."""
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    return module is not None and (
        isinstance(target, module) or (isinstance(target, type) and issubclass(target, module))
    )


def _decorated_function(function: types.FunctionType) -> DecoratedFunction | None:
    attributes = function.__dict__
    return attributes.decorated if isinstance(attributes, dynamo.Attributes) else None


def _decorate_function(function: types.FunctionType, made: Range) -> types.FunctionType:
    decorated = _decorated_function(function)
    if decorated is not None:
        decorated.surround(made)
    else:
        clone = _copy(function)
        decorated = DecoratedFunction(function, clone, (made,))
        dynamo.trace_instead(function, clone).decorated = decorated
        listeners.register(decorated)
    return function


def _decorated_copy(function: types.FunctionType, made: Range) -> types.FunctionType:
    """A copy of a function with its ranges and one more around them; the function itself does not change."""
    decorated = _decorated_function(function)
    copied = _copy(function)
    for inner in reversed(decorated.ranges if decorated is not None else ()):
        _decorate_function(copied, inner)
    return _decorate_function(copied, made)


def _copy(function: types.FunctionType) -> types.FunctionType:
    decorated = _decorated_function(function)
    code = function.__code__ if decorated is None else decorated.own
    copied = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copied, function, updated=())
    copied.__dict__ = dict(function.__dict__)  # without the __wrapped__ that was just added
    return copied


def _function_of(target: Any) -> types.FunctionType:
    """An ordinary wrapper for what has no Python code to replace: builtins, partials, callable objects."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await target(*args, **kwargs)

    wrapper: Any = call_async if inspect.iscoroutinefunction(target) else call
    functools.update_wrapper(wrapper, target, updated=())
    return cast(types.FunctionType, wrapper)


def _decorate_module(target: Any, made: Range) -> Any:
    # `forward`, not a forward hook: hooks cost 1.3 us a call, and make __call__ take its slow path.
    owner: Any = target if isinstance(target, type) else type(target)
    forward = vars(target).get("forward") or owner.forward
    forward = getattr(forward, "__func__", forward)
    if not isinstance(forward, types.FunctionType) or forward.__name__ == "_forward_unimplemented":
        raise UsageError(f"perfkit.range needs a forward() written in Python, {owner.__qualname__} has none")
    if isinstance(target, type):
        if "forward" in vars(target):
            _decorate_function(forward, made)
        else:
            owner.forward = _decorated_copy(forward, made)
    else:
        target.forward = types.MethodType(_decorated_copy(forward, made), target)
    return target
