"""A cache of what several measures need of a trace, kept for as long as the trace lives."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from perfkit.trace.columns import Trace

_Found = TypeVar("_Found")


def once(find: Callable[[Trace], _Found]) -> Callable[[Trace], _Found]:
    """Cache the result of a function for each trace; all callers share it, so none may change it."""
    known: WeakKeyDictionary[Trace, _Found] = WeakKeyDictionary()

    @wraps(find)
    def remembered(trace: Trace) -> _Found:
        if trace not in known:
            known[trace] = find(trace)
        return known[trace]

    return remembered
