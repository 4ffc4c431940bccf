"""Whether another thread runs or waits: for a lock, a socket, a file, or time to pass.

A thread that computes uses processor time, one that waits uses none. Its state, as the system shows it, then
distinguishes one that waits from one that could run and has no core. While the thread that looks holds the interpreter
lock, another one that runs Python waits too, but for that lock: `ThreadState.waits` is for after a moment without it.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

#: For how long the interpreter lock is free between two looks: ten times what a thread takes to get the lock and
#: continue (10 to 20 us), and no longer than a wait that matters lasts.
LOOK_S = 0.0002
#: After this many times as long, the thread may have gone on to its next line.
_LATE = 5
#: The share of the time that a thread computes at most while it waits: it may wake, and wait again, between two looks.
#: One that computes has more than half, also where another process has the core for a part.
_NEXT_TO_NONE = 0.25
#: Asleep until something happens, in the letters of /proc: interruptible, and inside the file system.
_ASLEEP = (b"S", b"D")


class ThreadState:
    """Reads the processor time and the state of the thread with identifier ``thread``.

    Where the system has no such clock (macOS, Windows) or no /proc, `known` is False and nothing is read.
    """

    def __init__(self, thread: int) -> None:
        native = next((one.native_id for one in threading.enumerate() if one.ident == thread), None)
        self._status = Path(f"/proc/self/task/{native}/stat")
        self.known = hasattr(time, "pthread_getcpuclockid") and self._status.exists()
        self._clock = time.pthread_getcpuclockid(thread) if self.known else 0
        self._before_ns = self._looked_ns = 0

    def look(self) -> None:
        """Note the thread's processor time."""
        self._before_ns, self._looked_ns = self._cpu_ns(), time.perf_counter_ns()

    def has_run(self) -> bool:
        """Whether the thread has used the processor since `look`."""
        return self._cpu_ns() != self._before_ns

    def waits(self) -> bool | None:
        """Whether the thread has used next to no processor since `look`, and could not.

        None where that was too long ago to know: on a busy machine a thread that looks may get its turn late.
        """
        passed_ns = time.perf_counter_ns() - self._looked_ns
        if passed_ns > _LATE * LOOK_S * 1e9:
            return None
        return self._cpu_ns() - self._before_ns < _NEXT_TO_NONE * passed_ns and self._is_asleep()

    def _cpu_ns(self) -> int:
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # the thread has ended
            self.known = False
            return 0

    def _is_asleep(self) -> bool:
        try:
            status = os.open(self._status, os.O_RDONLY)
        except OSError:
            return False
        try:
            # number (name) state ...; a name may contain anything.
            return os.read(status, 512).rpartition(b") ")[2][:1] in _ASLEEP
        finally:
            os.close(status)
