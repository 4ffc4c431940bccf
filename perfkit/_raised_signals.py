"""Which exception comes from a handler of a signal: it is meant for the program, whatever code it interrupted."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterator
from typing import Any


def leave_to_program(raised: BaseException) -> None:
    """Raise this again if a handler of a signal raised it: called where an error of perfkit's own work is dropped."""
    if signal_of(raised) is not None:
        raise raised


@contextlib.contextmanager
def errors_dropped() -> Iterator[None]:
    """Drop the errors of a block of perfkit's own work, other than what a signal's handler raises in it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
        leave_to_program(error)


def signal_of(raised: BaseException) -> int | None:
    """The number of the signal whose handler raised this; None where no handler did."""
    codes = set()
    trace = raised.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        if handler is signal.default_int_handler:
            if isinstance(raised, KeyboardInterrupt):
                return number
        elif callable(handler):
            function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", type(handler).__call__)
            if getattr(function, "__code__", None) in codes:
                return number
    return None
