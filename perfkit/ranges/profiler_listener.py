"""Listener: the torch profiler, while it records.

A range becomes a ``user_annotation``, as ``torch.profiler.record_function`` makes it, at a third of its cost, through
the pair of functions that torch's autograd offers. They tolerate everything that switching a listener causes: a pair
that straddles the start or stop of the profiler, an end out of order or in another thread, a handle that is dropped.
(The cheaper ``_RecordFunctionFast`` makes a ``cpu_op``, and aborts the process when its name is not a str.)
"""

from __future__ import annotations

import threading
from typing import Any

from perfkit.ranges import dynamo, listeners
from perfkit.ranges.listeners import PROFILER, Form

#: Per thread: ``by_number``, the open handles of each range, innermost last. By range, so that coroutines that
#: interleave in one thread end their own annotation in any order.
_open_handles = threading.local()


def _new_handles(number: int) -> list[Any]:
    """The list of open handles of one range in this thread, made on first use."""
    if not hasattr(_open_handles, "by_number"):
        _open_handles.by_number = {}
    handles: list[Any] = _open_handles.by_number.setdefault(number, [])
    return handles


def _no_annotation(_: object) -> None:
    return None


_WITH_BEGIN = """\
try:
    {kept} = {open_handles}.by_number[{number}]
except (AttributeError, KeyError):
    {kept} = {new_handles}({number})
{kept}.append({profiler_enter}({name}))"""
_WITH_END = """\
try:
    {kept} = {open_handles}.by_number[{number}].pop()
except (AttributeError, KeyError, IndexError):
    pass
else:
    {profiler_exit}({kept})"""


class ProfilerListener(listeners.RangeListener):
    """Annotates the trace of the torch profiler."""

    bit = PROFILER
    calls = {
        "open_handles": _open_handles,
        "new_handles": _new_handles,
        # name -> handle, handle -> None
        "profiler_enter": _no_annotation,
        "profiler_exit": _no_annotation,
    }

    def code(self, form: Form, mode: int) -> tuple[str, str]:
        """Keep the handle of the annotation until the end, where nothing can be kept in a list per thread and range."""
        if form in ("with", "payload"):
            return _WITH_BEGIN, _WITH_END
        return "{kept} = {profiler_enter}({name})", "{profiler_exit}({kept})"

    def load_torch(self, torch: Any) -> None:
        """Take the functions from a torch that has just been loaded."""
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

        self.connect(profiler_enter=enter, profiler_exit=leave)


LISTENER = ProfilerListener()
dynamo.leave_alone(_new_handles.__code__)
