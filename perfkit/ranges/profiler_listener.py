"""Listener: the torch profiler, while it records.

A range becomes a ``user_annotation``, as ``torch.profiler.record_function`` makes it, at a third of its
price, through the pair of functions that torch's autograd itself offers. They survive what a toggled
listener does to them: a pair that straddles the start or the stop of the profiler, ends out of order or
in another thread, a handle that is dropped. (The even cheaper ``_RecordFunctionFast`` makes a ``cpu_op``,
and aborts the process when it is handed anything but a str.)
"""

from __future__ import annotations

import threading
from typing import Any

from perfkit.ranges import calls, listeners

#: Per thread: ``by_id``, the open handles of each range, innermost last. By range, so that coroutines that
#: interleave in one thread end their own annotation, whatever the order.
open_handles = threading.local()


def new_handles(number: int) -> list[Any]:
    """The list of open handles of one range in this thread, made on first use."""
    if not hasattr(open_handles, "by_id"):
        open_handles.by_id = {}
    handles: list[Any] = open_handles.by_id.setdefault(number, [])
    return handles


def bind(torch: Any) -> None:
    """Take the calls from a torch that has just been loaded."""
    pair = getattr(torch._C, "_autograd", None)
    enter = getattr(pair, "_record_function_with_args_enter", None)
    leave = getattr(pair, "_record_function_with_args_exit", None)
    if enter is None or leave is None:

        def enter(name: str) -> Any:
            annotation = torch.autograd.profiler.record_function(name)
            annotation.__enter__()
            return annotation

        def leave(annotation: Any) -> None:
            annotation.__exit__(None, None, None)

    calls.profiler_enter, calls.profiler_exit = enter, leave


def started() -> None:
    """The torch profiler is about to record."""
    listeners.listen(listeners.PROFILER, True)


def stopped() -> None:
    """The torch profiler has stopped recording."""
    listeners.listen(listeners.PROFILER, False)
