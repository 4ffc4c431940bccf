"""Processor time of ordinary steps, and the time in which the thread that trains had no core to run on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from perfkit.record.watchers.own_cost import OwnTime


class _Thread(NamedTuple):
    """How long a thread ran and waited for a core so far, in ns."""

    ran_ns: int
    waited_ns: int


class _Reading(NamedTuple):
    """The clock, the process's processor time, and the thread's times where they are known; in ns."""

    step: int
    wall_ns: int
    process_ns: int
    thread: _Thread | None


class ProcessorTime:
    """Sums over the steps between readings, which happen in the thread that trains.

    Linux counts in ``/proc/.../schedstat`` how long a thread ran, and how long it could have run and waited for a core;
    elsewhere that is not known. ``own`` returns perfkit's processor time so far that belongs to no step.
    """

    def __init__(self, own: Callable[[], OwnTime] = lambda: OwnTime(0, 0)) -> None:
        self._own = own
        self._last: _Reading | None = None
        self._steps = self._process_ns = 0
        #: The same of all other steps: in windows, and those that are recorded for something else.
        self._other_steps = self._other_ns = 0
        self._thread_steps = self._thread_ns = self._waited_ns = self._wall_ns = 0

    def read(self, step: int, *, timed: bool) -> None:
        """Read before ``step``; ``timed``: the steps since the last reading were ordinary ones."""
        own = self._own()
        wall_ns, process_ns, thread = time.perf_counter_ns(), time.process_time_ns(), _thread_times()
        if thread is not None:
            thread = thread._replace(ran_ns=thread.ran_ns - own.thread_ns)
        now = _Reading(step, wall_ns, process_ns - own.process_ns, thread)
        last, self._last = self._last, now
        if last is None:
            return
        if not timed:
            self._other_steps += now.step - last.step
            self._other_ns += now.process_ns - last.process_ns
            return
        self._steps += now.step - last.step
        self._process_ns += now.process_ns - last.process_ns
        # A counter that falls is that of another thread, which trains from now on.
        if now.thread is not None and last.thread is not None and now.thread.ran_ns >= last.thread.ran_ns:
            self._thread_steps += now.step - last.step
            self._wall_ns += now.wall_ns - last.wall_ns
            self._thread_ns += now.thread.ran_ns - last.thread.ran_ns
            self._waited_ns += now.thread.waited_ns - last.thread.waited_ns

    @property
    def windows_ns(self) -> int | None:
        """What the steps that were recorded in detail took beyond as many ordinary ones; None: not known."""
        if not self._steps or not self._other_steps:
            return None
        return max(0, self._other_ns - round(self._other_steps * self._process_ns / self._steps))

    @property
    def facts(self) -> dict[str, int | float | None]:
        """Fields of `Rank`: each None where it is not known, or before there were ordinary steps."""
        return {
            "cpu_ns_per_step": max(0, round(self._process_ns / self._steps)) if self._steps else None,
            "thread_ns_per_step": max(0, round(self._thread_ns / self._thread_steps)) if self._thread_steps else None,
            "core_wait_share": min(1.0, self._waited_ns / self._wall_ns) if self._wall_ns else None,
        }


def _thread_times() -> _Thread | None:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/schedstat", "rb") as file:
            ran, waited = file.read(64).split()[:2]
            return _Thread(int(ran), int(waited))
    except (OSError, ValueError):  # another system, or a kernel without schedstat
        return None
