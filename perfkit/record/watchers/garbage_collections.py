"""Garbage collections: how long they took in each step, and in which of the user's lines the full ones began."""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from perfkit._callsite import CallSite, find_callsite
from perfkit._code_owner import owner_of
from perfkit.run.records import Collected

#: Lines in which full collections began that are kept: more than a person reads.
_MOST_LINES = 100
#: When a signal is sent again: the callback, which has some instructions left, is over, and nobody notices the delay.
_LATER_S = 0.005


class _Callback(functools.partial[Any]):
    """What `gc` calls with a phase and its facts: C code that hands one after the other to a generator.

    A function in Python would eat a Ctrl-C that comes while garbage is collected: its handler runs with the first
    Python code after it, which is this callback, and what is raised in a callback of `gc` is printed and forgotten (10
    of 10 were lost, and training went on). A generator that waits inside a ``try`` sees even what is raised before its
    first instruction. ``max`` is the function in C that calls a ``key`` with each of its arguments.
    """


class GarbageWatch:
    """Listens to the garbage collector.

    Args:
        step: Tells the number of the running step.
        trouble: Is told what of this failed, and its error.
    """

    def __init__(self, step: Callable[[], int], trouble: Callable[[str, BaseException], None]) -> None:
        self._step = step
        self._trouble = trouble
        self._callback: _Callback | None = None
        #: Step -> nanoseconds of collections while it ran; whoever makes the step's row takes it out.
        self.ns: dict[int, int] = {}
        self._began_ns = 0
        self._site: CallSite | None = None
        #: Line -> full collections that began there, and their time.
        self._lines: dict[CallSite, tuple[int, int]] = {}

    def attach(self) -> None:
        """Begin to listen."""
        heard = self._listen()
        next(heard)
        self._callback = _Callback(max, key=heard.send)
        gc.callbacks.append(self._callback)

    def detach(self) -> None:
        """Stop listening; what was heard stays."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)
        self._callback = None

    def lines(self) -> tuple[Collected, ...]:
        """The lines in which full collections began, the costliest first."""
        rows = [
            Collected(
                file=site.file, line=site.line, function=site.function, owner=site.owner, count=count, total_ns=total
            )
            for site, (count, total) in list(self._lines.items())
        ]
        return tuple(sorted(rows, key=lambda row: -row.total_ns))

    def _listen(self) -> Generator[int, str | dict[str, int], None]:
        """Is sent a phase, then its facts, then the next phase; an interrupt takes away what was sent with it."""
        phase = None
        while True:
            try:
                heard = yield 0  # any number: max compares them
                if not isinstance(heard, str):
                    if phase == "start":
                        self._begins(heard["generation"])
                    continue
                phase = heard
                if phase == "stop":
                    self._ended()
            except GeneratorExit:
                raise
            except BaseException as raised:  # noqa: BLE001 - nothing raised here would reach the program
                phase = None
                self._ended()  # what was taken away may have been the end
                self._send_again(raised)

    def _begins(self, generation: int) -> None:
        # Only the oldest generation takes long, and comes seldom enough to be asked where it began.
        self._site = _allocating() if generation == 2 else None
        self._began_ns = time.perf_counter_ns()

    def _ended(self) -> None:
        if not self._began_ns:
            return
        took = time.perf_counter_ns() - self._began_ns
        self._began_ns = 0
        step = self._step()
        self.ns[step] = self.ns.get(step, 0) + took
        site, self._site = self._site, None
        if site is not None and (site in self._lines or len(self._lines) < _MOST_LINES):
            count, total = self._lines.get(site, (0, 0))
            self._lines[site] = (count + 1, total + took)

    def _send_again(self, raised: BaseException) -> None:
        """Send the signal once more whose handler raised this, so that it reaches the program's own code."""
        number = _signal_of(raised)
        if number is not None:
            # By a thread, and later: sent here, it would be raised here. Not one of `threading`, whose locks may be
            # held by the code that is being interrupted. An ending interpreter refuses it: nothing is left to stop.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(_send, (number,))
        else:
            self._trouble("timing garbage collections", raised)


def _send(number: int) -> None:
    time.sleep(_LATER_S)
    # To the thread itself: that also ends a sleep or a wait in it.
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _allocating() -> CallSite | None:
    """The user's line in which a garbage collection begins; None for perfkit's own code, that the user does not see."""
    frame = sys._getframe(3)
    site = find_callsite(frame) if owner_of(frame.f_code.co_filename) != "perfkit" else None
    return msgspec.structs.replace(site, via=None) if site is not None else None


def _signal_of(raised: BaseException) -> int | None:
    """The number of the signal whose handler raised this; None where it was no handler."""
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
