"""``perfkit.range`` and ``perfkit.mark``: the functions that a user calls, from arguments to the range of that name.

The common call, ``perfkit.range("loss")``, is a plain Python function that subscripts a dictionary, which is what the
interpreter does fastest. (Measured: ``dict.get``, chained ``is``, a class with a cache in ``__new__``, a metaclass and
``lru_cache`` all cost more.)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast, overload

from perfkit.errors import UsageError
from perfkit.ranges import (
    decorator,
    dynamo,
    listener_calls,
    listeners,
    profiler_observer,
    range_arguments,
    range_objects,
)
from perfkit.ranges.listeners import NVTX, PROFILER
from perfkit.ranges.range_arguments import Color, Payload
from perfkit.ranges.range_objects import Range

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# Ranges by the arguments of the call: by name alone, and by all of them.
_by_name: dict[object, Range] = {}
_by_arguments: dict[object, Range] = {}


class RangeFunction(Protocol):
    """The type of ``perfkit.range``; the function itself documents it."""

    @overload
    def __call__(self, name: Decorated) -> Decorated: ...

    @overload
    def __call__(
        self,
        name: str,
        color: Color | None = None,
        category: str | None = None,
        domain: str | None = None,
        payload: Payload | None = None,
        device_time: bool = False,
    ) -> Range: ...

    @overload
    def __call__(
        self,
        name: None = None,
        color: Color | None = None,
        category: str | None = None,
        domain: str | None = None,
        payload: Payload | None = None,
        device_time: bool = False,
    ) -> Callable[[Decorated], Decorated]: ...

    def push(
        self,
        name: str,
        color: Color | None = None,
        category: str | None = None,
        domain: str | None = None,
        payload: Payload | None = None,
    ) -> None:
        """Begin a range in this thread that `pop` ends."""

    def pop(self) -> None:
        """End the range that this thread pushed last."""


def _range(
    name: Any = None,
    color: Color | None = None,
    category: str | None = None,
    domain: str | None = None,
    payload: Payload | None = None,
    device_time: bool = False,
) -> Any:
    """A named range of time: ``with perfkit.range("loss"):``, ``async with``, or ``@perfkit.range``.

    As a decorator it takes functions, methods, coroutines, generators and nn.Module classes or instances
    (their ``forward``), and is named by ``__qualname__`` unless ``name`` is given. The range of a generator
    lasts from its first to its last value.

    Names are kept for ever, up to 4096 of them: put what changes into ``payload``, not into the name. Ranges of
    ``async with`` may overlap. A plain ``with`` around an ``await`` may end in another order than NVTX expects of one
    thread.

    Args:
        name: the name that tools show.
        color: "red", "#rrggbb" or 0xAARRGGBB, for NVTX tools.
        category: a group of ranges within a domain ("forward", "data").
        domain: the namespace of a library's ranges. Default "perfkit".
        payload: an int of 64 bits or a float, for NVTX tools. Anything else is dropped with one warning.
        device_time: also record the time on a CUDA device, from events on the current stream, without waiting for it
            (run against a simulated CUDA runtime, not on a GPU yet). With and without it, one name makes two ranges.

    Raises:
        UsageError: an invalid name, color, category or domain, or something that cannot be decorated.
    """
    # Written out and in this order, because every test on the way of `perfkit.range("x")` counts.
    try:
        if color is None and category is None and domain is None and not device_time:
            if payload is None:
                return _by_name[name]
            found = _by_name[name]
        else:
            found = _by_arguments[name, color, category, domain, device_time]
            if payload is None:
                return found
    except (KeyError, TypeError):
        # Not made yet, or not hashable, which `_make` rejects. It is not called here, so that its errors do not
        # have this one as their context.
        pass
    else:
        if type(payload) in _PLAIN and not listeners.mode & NVTX:
            return found
        return range_objects.with_payload(found, payload)
    return _make(name, color, category, domain, payload, device_time)


#: Types of a payload that need no check while no tool shows it.
_PLAIN = frozenset((int, float))


def _make(name: Any, color: Any, category: Any, domain: Any, payload: Any, device_time: Any) -> Any:
    if name is None:
        return _UnnamedRange(color, category, domain, payload, device_time)
    if not isinstance(name, str) and (
        callable(name) or isinstance(name, (staticmethod, classmethod)) or decorator.is_module(name)
    ):
        return _UnnamedRange(color, category, domain, payload, device_time)(name)
    profiler_observer.observe()
    made = range_objects.find(name, color, category, domain, device_time)
    if isinstance(made, range_objects.NamedRange):
        if color is None and category is None and domain is None and not device_time:
            _by_name[name] = made
        elif len(_by_arguments) < range_objects.LIMIT:
            _by_arguments[name, color, category, domain, device_time] = made
    return made if payload is None else range_objects.with_payload(made, payload)


class _UnnamedRange:
    """``@perfkit.range(color="red")``: takes its name from the function that it decorates."""

    def __init__(self, color: Any, category: Any, domain: Any, payload: Any, device_time: Any) -> None:
        range_arguments.check_color(color)
        for what, text in (("category", category), ("domain", domain)):
            if text is not None:
                range_arguments.check_text(what, text)
        self._arguments = color, category, domain, payload, device_time

    def __call__(self, target: Any) -> Any:
        color, category, domain, payload, device_time = self._arguments
        made = range_objects.find(decorator.name_of(target), color, category, domain, device_time)
        return decorator.decorate(target, made if payload is None else range_objects.with_payload(made, payload))

    def __enter__(self) -> Any:
        raise UsageError('a range in a with statement needs a name: with perfkit.range("loss"):')

    def __exit__(self, *error: object) -> None:
        """Not reached: entering raises."""


_pushed = threading.local()


def _push(
    name: str,
    color: Color | None = None,
    category: str | None = None,
    domain: str | None = None,
    payload: Payload | None = None,
) -> None:
    """Begin a range in this thread that ``range.pop()`` ends, for code that cannot use a ``with``.

    Raises:
        UsageError: an invalid argument, as for `range`.
    """
    made = _range(name, color, category, domain, payload)
    if not isinstance(made, Range):
        raise UsageError(f"perfkit.range.push needs a name, got {name!r}")
    leave = made.__exit__
    made.__enter__()
    try:
        _pushed.stack.append(leave)
    except AttributeError:
        _pushed.stack = [leave]


def _pop() -> None:
    """End the range that this thread pushed last; one pop too many does nothing but warn once."""
    stack = getattr(_pushed, "stack", None)
    if stack:
        stack.pop()(None, None, None)
    else:
        listeners.warn_once(
            "perfkit.range.pop() without a perfkit.range.push() in this thread: nothing was ended", key="pop"
        )


def mark(
    name: str,
    color: Color | None = None,
    category: str | None = None,
    domain: str | None = None,
    payload: Payload | None = None,
) -> None:
    """Mark an instant, for NVTX tools and in traces of the torch profiler (as an annotation of no length).

    The recorder keeps durations and leaves marks out.

    Raises:
        UsageError: an invalid name, color, category or domain.
    """
    made = _range(name, color, category, domain, payload)
    if not isinstance(made, Range):
        raise UsageError(f"perfkit.mark needs a name, got {name!r}")
    mode = listeners.mode
    if mode & NVTX:
        listener_calls.mark(*made.nvtx_attributes())
    if mode & PROFILER:
        listener_calls.profiler_exit(listener_calls.profiler_enter(made.name))


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """What torch.compile sees of `mark`, `push` and `pop`."""


def _null_range(*arguments: Any, **keywords: Any) -> Any:
    """What torch.compile sees of `range`."""
    return contextlib.nullcontext()


for _function, _name in ((_range, "range"), (_push, "push"), (_pop, "pop"), (mark, "mark")):
    _function.__name__ = _function.__qualname__ = _name
    dynamo.trace_instead(_function, _null_range if _function is _range else _nothing)
    dynamo.leave_alone(_function.__code__)
for _function in (_push, _pop):
    setattr(_range, _function.__name__, _function)

range = cast(RangeFunction, _range)
