"""Garbage collections: their time in each step, and the user's lines in which the full ones began.

Only those inside of a step that ends count. What the program creates before its loop is collected then, perfkit's own
work between two steps is its own, and what follows the last step is not the loop's.
"""

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
from typing import Any, Protocol

import msgspec

from perfkit._callsite import find_callsite
from perfkit._code_owner import owner_of
from perfkit._location import Location
from perfkit._patches import Patches
from perfkit._raised_signals import signal_of
from perfkit.run.records import Collected

#: Lines that are kept: more than a person reads.
_MAX_LINES = 100
#: Full collections in steps that are not over yet: each takes a millisecond at least, so this is a long step.
_MAX_PENDING = 10_000
#: How long after the callback a signal is sent again: the callback is over by then, and the delay is not noticeable.
_RESEND_S = 0.005
#: Python 3.10 calls a trace function where a generator continues, but before its ``try`` holds: an interrupt that was
#: raised there would end the generator, and be lost.
_TRACED_FIRST = sys.version_info < (3, 11)


class RunningStep(Protocol):
    """Where the loop is: `perfkit.record.clock.step_clock.StepClock`."""

    step_num: int
    running: bool
    starts: int


class _Callback(functools.partial[Any]):
    """What `gc` calls with a phase and its facts: C code that sends both to a generator.

    A Python function would lose a Ctrl-C that comes during a collection: the signal's handler runs with the first
    Python code after it, which is this callback, and `gc` prints and ignores what a callback raises (10 of 10 were
    lost, and training continued). A generator that waits inside a ``try`` catches even what is raised before its first
    instruction. ``max`` is the C function that calls a ``key`` with each of its arguments.
    """


class GarbageWatch:
    """Times garbage collections while attached.

    Args:
        clock: Knows the running step.
        trouble: Called with what failed here, and its error.
    """

    def __init__(self, clock: RunningStep, trouble: Callable[[str, BaseException], None]) -> None:
        self._clock = clock
        self._trouble = trouble
        self._patches = Patches()
        #: Step -> nanoseconds of collections in it, since the clock's last start; the line and time of the full ones.
        self._ns: dict[int, int] = {}
        self._full: list[tuple[int, Location, int]] = []
        self._starts = clock.starts
        self._started_ns = 0
        self._at: Location | None = None
        #: perfkit's own trace function, while a collection runs in Python 3.10.
        self._traced: Any = None
        #: Line -> full collections that began there, and their time.
        self._lines: dict[Location, tuple[int, int]] = {}

    def attach(self) -> None:
        """Start timing."""
        events = self._events()
        next(events)
        callback = _Callback(max, key=events.send)
        gc.callbacks.append(callback)
        self._patches.add("gc.callbacks", lambda: gc.callbacks.remove(callback) if callback in gc.callbacks else None)

    def detach(self) -> None:
        """Stop timing; the results are kept."""
        self._patches.undo()

    def take(self, end: int) -> dict[int, int]:
        """Step -> nanoseconds of collections in it, of the steps before step ``end``: these are over."""
        self._drop_stale()
        taken, self._ns = self._ns, {}
        full, self._full = self._full, []
        for step in [one for one in taken if one >= end]:
            self._ns[step] = taken.pop(step)
        for step, at, took_ns in full:
            if step >= end:
                self._full.append((step, at, took_ns))
            elif at in self._lines or len(self._lines) < _MAX_LINES:
                count, total_ns = self._lines.get(at, (0, 0))
                self._lines[at] = (count + 1, total_ns + took_ns)
        return taken

    def _drop_stale(self) -> None:
        if self._starts != self._clock.starts:
            self._starts = self._clock.starts
            self._ns.clear()
            self._full.clear()

    def lines(self) -> tuple[Collected, ...]:
        """The lines in which full collections began, the most expensive first."""
        rows = [
            Collected(**msgspec.structs.asdict(at), count=count, total_ns=total_ns)
            for at, (count, total_ns) in list(self._lines.items())
        ]
        return tuple(sorted(rows, key=lambda row: -row.total_ns))

    def _events(self) -> Generator[int, str | dict[str, int], None]:
        """Receives a phase, then its facts, then the next phase; an interrupt replaces what was sent with it."""
        phase = None
        unsent: tuple[BaseException, ...] = ()
        # No handler below calls anything: an interrupt can come at each call, and one that comes in a handler would be
        # lost. The outer one takes what comes at the jump back, after the inner one.
        while True:
            try:
                while True:
                    try:
                        while unsent:
                            phase = None
                            self._end()  # what an interrupt replaced may have been the end
                            # Taken before it is sent: on a busy machine it is back before the call that sends it ends.
                            raised, unsent = unsent[0], unsent[1:]
                            self._send_again(raised)
                        sent = yield 0  # any number: max compares them
                        if not isinstance(sent, str):
                            if phase == "start":
                                self._begin(sent["generation"])
                            continue
                        phase = sent
                        if phase == "stop":
                            self._end()
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001 - nothing raised here would reach the program
                        unsent = (*unsent, error)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001
                unsent = (*unsent, error)

    def _begin(self, generation: int) -> None:
        # Only collections of the oldest generation take long, and are rare enough to find their line.
        self._at = _allocating_line() if generation == 2 else None
        trace = sys.gettrace()
        if _TRACED_FIRST and str(getattr(trace, "__module__", "")).startswith("perfkit."):
            self._traced = trace
            sys.settrace(None)
        self._started_ns = time.perf_counter_ns()

    def _end(self) -> None:
        if self._traced is not None:
            sys.settrace(self._traced)
            self._traced = None
        if not self._started_ns:
            return
        took_ns = time.perf_counter_ns() - self._started_ns
        self._started_ns = 0
        at, self._at = self._at, None
        if not self._clock.running:
            return
        self._drop_stale()
        step = self._clock.step_num
        self._ns[step] = self._ns.get(step, 0) + took_ns
        if at is not None and len(self._full) < _MAX_PENDING:
            self._full.append((step, at, took_ns))

    def _send_again(self, raised: BaseException) -> None:
        """Send the signal again whose handler raised this, so that it reaches the program's own code."""
        number = signal_of(raised)
        if number is not None:
            # By a thread, and later: sent here, it would be raised here. Not one of `threading`, whose locks the
            # interrupted code may hold. An interpreter that exits refuses it: then nothing is left to interrupt.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(_send, (number,))
        else:
            self._trouble("timing garbage collections", raised)


def _send(number: int) -> None:
    time.sleep(_RESEND_S)
    # To the thread itself: that also ends a sleep or a wait in it.
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _allocating_line() -> Location | None:
    """The user's line in which a garbage collection begins; None in perfkit's own code."""
    frame = sys._getframe(3)
    site = find_callsite(frame) if owner_of(frame.f_code.co_filename) != "perfkit" else None
    return site.at if site is not None else None
