"""Processor time of ordinary steps, and the time in which the thread that trains had no core to run on."""

from __future__ import annotations

import threading
import time


class ProcessorTime:
    """Sums over the steps between readings, which happen in the thread that trains.

    Linux counts in ``/proc/.../schedstat`` how long a thread could run and waited for a core (its second number);
    elsewhere that is not known.
    """

    def __init__(self) -> None:
        self._last: tuple[int, int, int | None] | None = None
        self._steps = self._cpu_ns = self._waited_ns = 0
        self._waited_steps = 0

    def read(self, step: int, *, timed: bool) -> None:
        """Read before ``step``; ``timed``: the steps since the last reading were ordinary ones."""
        now = step, time.process_time_ns(), _waited_for_core_ns()
        last, self._last = self._last, now
        if not timed or last is None:
            return
        self._steps += now[0] - last[0]
        self._cpu_ns += now[1] - last[1]
        # A counter that falls is that of another thread, which trains from now on.
        if now[2] is not None and last[2] is not None and now[2] >= last[2]:
            self._waited_steps += now[0] - last[0]
            self._waited_ns += now[2] - last[2]

    @property
    def cpu_ns_per_step(self) -> int | None:
        """Processor time of this process, all its threads, per ordinary step; None before there were some."""
        return round(self._cpu_ns / self._steps) if self._steps else None

    @property
    def core_wait_ns_per_step(self) -> int | None:
        """How long the thread that trains waited for a core, per ordinary step; None where that is not known."""
        return round(self._waited_ns / self._waited_steps) if self._waited_steps else None


def _waited_for_core_ns() -> int | None:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/schedstat", "rb") as file:
            return int(file.read(64).split()[1])
    except (OSError, ValueError, IndexError):  # another system, or a kernel without schedstat
        return None
