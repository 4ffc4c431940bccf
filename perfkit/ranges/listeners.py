"""Who listens, and telling every range when that changes.

The mode is a set of bits. On a change every range and every decorated function is given the mode by its
``listen(mode)``, which puts the code for exactly these listeners in its place; so a range in use tests no
flag. With nothing listening the mode is 0, and what stands there is nothing at all.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from typing import Protocol

from perfkit import _env
from perfkit._code_owner import line_of, user_and_library_frame
from perfkit._stderr import print_message
from perfkit.errors import PerfkitWarning

RECORDER = 1
NVTX = 2
PROFILER = 4
#: The recorder has found so many events that the threads are to look after the length of their lists themselves.
DENSE = 8

#: Bits of the listeners that are on now.
mode = 0
#: ``PERFKIT_DISABLE=1`` when perfkit was imported: nothing will ever listen.
disabled = _env.disabled()


class Target(Protocol):
    """A range or a decorated function."""

    def listen(self, mode: int) -> None:
        """Put the code for these listeners in place."""


#: For what is made and switched. Reentrant: a garbage collection may run user code that makes a range.
lock = threading.RLock()
_targets: dict[int, weakref.ref[Target]] = {}
_told: set[str] = set()


def register(target: Target) -> None:
    """Keep a target up to date for as long as it lives, beginning now."""
    key = id(target)
    with lock:
        _targets[key] = weakref.ref(target, lambda _: _targets.pop(key, None))
        _listen(target)


def listen(bit: int, on: bool) -> None:
    """Switch one listener on or off, in every thread, whatever is open."""
    global mode
    with lock:
        changed = mode | bit if on else mode & ~bit
        if disabled or changed == mode:
            return
        mode = changed
        refresh()


def refresh() -> None:
    """Give every target the present mode again (a listener's calls are other ones now)."""
    with lock:
        for reference in list(_targets.values()):
            target = reference()
            if target is not None:
                _listen(target)


def _listen(target: Target) -> None:
    try:
        target.listen(mode)
    except Exception as error:  # noqa: BLE001 - a range that cannot be switched is left off; training goes on
        tell(f"{target!r} cannot be listened to and is left off: {type(error).__name__}: {error}")
        try:
            target.listen(0)
        except Exception:  # noqa: BLE001 - said above already
            pass


def tell(text: str, once: str | None = None) -> None:
    """Warn one time per ``once`` (default: per text) that something was given up, at the user's line; never raises."""
    key = once or text
    if key in _told:
        return
    _told.add(key)
    user, library = user_and_library_frame(sys._getframe(1))
    found = user or library
    file, line = (found.f_code.co_filename, line_of(found)) if found is not None else ("<perfkit>", 0)
    if found is not None:
        text = f"{text} ({file}:{line})"
    try:
        warnings.warn_explicit(text, PerfkitWarning, file, line)
    except Warning:
        # Warnings are errors in this program; entering a range may still not raise.
        print_message(text)


def _after_fork_in_child() -> None:
    # The torch profiler stayed in the parent, and the lock may have been held by a thread that is not here.
    global lock
    lock = threading.RLock()
    listen(PROFILER, False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
