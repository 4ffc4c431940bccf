"""What a range calls while something listens: one name per call, filled in by the listeners.

Generated code (`context`, `decorator`) reaches a listener only through the names of this module. Until
a listener fills them in they do nothing, so that a decorated function that was pickled by value while
something listened (cloudpickle: notebooks, Ray) still runs in a process where nothing does.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable
from typing import Any


def _nothing(*_arguments: object) -> None:
    return None


def _no_range(_attributes: object, _handle: object) -> tuple[int]:
    return (0,)


def throwaway() -> list[int]:
    """A buffer that nobody reads: what a thread gets while no recorder runs."""
    return []


# The recorder: `tls.buffer` is this thread's list of events; where there is none yet, `new_buffer()` makes it.
tls = threading.local()
new_buffer: Callable[[], list[int]] = throwaway
clock = time.perf_counter_ns
# Where there are very many events: beyond so many values in its list a thread calls `full()`, which returns the
# list to go on with. (`len` lies here because the user's module may hold another one.)
limit = 1 << 18
full: Callable[[], list[int]] = throwaway
len = builtins.len

# NVTX: (attributes, domain handle) -> ..., (domain handle), ...
push: Callable[..., Any] = _nothing
pop: Callable[..., Any] = _nothing
start: Callable[..., Any] = _no_range
end: Callable[..., Any] = _nothing
mark: Callable[..., Any] = _nothing

# Device time: the range's number -> handle, handle -> None; and for `with`, which keeps no handle: number -> None.
device_begin: Callable[..., Any] = _nothing
device_end: Callable[..., Any] = _nothing
device_enter: Callable[..., Any] = _nothing
device_leave: Callable[..., Any] = _nothing

# The torch profiler: name -> handle, handle -> None.
profiler_enter: Callable[..., Any] = _nothing
profiler_exit: Callable[..., Any] = _nothing
