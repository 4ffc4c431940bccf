"""The listeners of ranges: the protocol that each follows, which of them listen now, and switching them.

`mode` is the set of bits of the listeners that are on. On a change, `switch` gives the mode to every range and every
decorated function, and each installs code for exactly these listeners (`enter_exit` generates it). So a range in use
tests no flag, and where nothing listens there is no code to run.

To add a listener: write a file with a subclass of `RangeListener`, give it a bit below, and import the file in
`perfkit.ranges`.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from typing import Any, ClassVar, Literal, Protocol

from perfkit import _env
from perfkit._code_owner import line_of, user_and_library_frame
from perfkit._stderr import print_message
from perfkit.errors import PerfkitWarning
from perfkit.ranges import listener_calls

# One bit per listener. At its begin a range calls them from the highest bit to the lowest, at its end in reverse. The
# recorder is innermost and so sees the tightest interval.
RECORDER = 1
NVTX = 2
PROFILER = 4
#: A variant of RECORDER, on after very many events: threads check the length of their own lists.
DENSE = 8
#: Device times, for ranges that ask for them while the recorder is on; see `Range.own_mode`.
DEVICE = 16

#: Bits of the listeners that are on now.
mode = 0
#: Whether PERFKIT_DISABLE was set when perfkit was imported: then nothing ever listens.
disabled = _env.disabled()

#: How a range is used, which decides what its code can keep between begin and end:
#: "with": nothing, because one object serves every entry, in every thread
#: "payload": the same, for a range whose payload an NVTX tool shows
#: "call": local variables of one frame; begins and ends of a thread nest
#: "overlapping": local variables; the end may come out of order or in another thread (coroutines, generators)
Form = Literal["with", "payload", "call", "overlapping"]


class RangeListener:
    """Something that is called where each range begins and ends."""

    bit: ClassVar[int]
    #: The names that this listener's code calls, and what they are while it is not connected.
    calls: ClassVar[dict[str, Any]]

    def __init__(self) -> None:
        by_bit[self.bit] = self
        self.connect(**self.calls)

    def code(self, form: Form, mode: int) -> tuple[str, str]:
        """Python statements that begin and end a range in this form, as format strings.

        ``{number}`` is the range's number and ``{inverse}`` its complement, ``{name}`` its name, ``{attributes}`` and
        ``{handle}`` are `Range.nvtx_attributes`. ``{kept}`` is a local variable of this listener: in the forms "call"
        and "overlapping" the end reads what the begin assigned. Each of `calls` is available under its own name.
        """
        raise NotImplementedError

    def connect(self, **functions: Any) -> None:
        """Let generated code call these functions; `switch` or `refresh` must follow to reach existing ranges."""
        vars(listener_calls).update(functions)


by_bit: dict[int, RangeListener] = {}


class Target(Protocol):
    """A range or a decorated function."""

    def install(self, mode: int) -> None:
        """Install the code for these listeners."""


#: Guards the making and switching of ranges. Reentrant: a garbage collection may run user code that makes a range.
lock = threading.RLock()
_targets: dict[int, weakref.ref[Target]] = {}
_warned: set[str] = set()


def register(target: Target) -> None:
    """Install the present code in a target now, and on every switch for as long as it lives."""
    key = id(target)
    with lock:
        _targets[key] = weakref.ref(target, lambda _: _targets.pop(key, None))
        _install(target)


def switch(bits: int, on: bool) -> None:
    """Switch listeners on or off in every thread, whatever ranges are open."""
    global mode
    with lock:
        changed = mode | bits if on else mode & ~bits
        if disabled or changed == mode:
            return
        mode = changed
        refresh()


def refresh() -> None:
    """Install the present mode in every target again, because a listener is connected to other functions now."""
    with lock:
        for reference in list(_targets.values()):
            target = reference()
            if target is not None:
                _install(target)


def _install(target: Target) -> None:
    try:
        target.install(mode)
    except Exception as error:  # noqa: BLE001 - a range that cannot be switched is left off; training continues
        warn_once(f"{target!r} cannot be recorded and is left off: {type(error).__name__}: {error}")
        try:
            target.install(0)
        except Exception:  # noqa: BLE001 - reported above
            pass


def warn_once(text: str, key: str | None = None) -> None:
    """Warn at the user's line, once per ``key`` (default: per text); never raises."""
    key = key or text
    if key in _warned:
        return
    _warned.add(key)
    user, library = user_and_library_frame(sys._getframe(1))
    frame = user or library
    file, line = "<perfkit>", 0
    if frame is not None:
        file, line = frame.f_code.co_filename, line_of(frame)
        text = f"{text} ({file}:{line})"
    try:
        warnings.warn_explicit(text, PerfkitWarning, file, line)
    except Warning:
        # This program turns warnings into errors, and entering a range must not raise.
        print_message(text)


def _after_fork_in_child() -> None:
    # The torch profiler stayed in the parent, and a thread that is not here may have held the lock.
    global lock
    lock = threading.RLock()
    switch(PROFILER, False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
