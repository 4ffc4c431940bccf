"""A light sampler: which user line the training thread is in, by phase, without Kineto's stacks.

A daemon thread looks at the training thread's stack every 10 ms and books the user's line. It holds the
interpreter lock for some microseconds each time, so it costs well under 1 % of a step. What it cannot
see: a thread that holds the lock inside one long C call is seen when the call ends, on the right line.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from perfkit._callsite import find_callsite
from perfkit.run.records import LineRow, Phase

#: 10 ms: 100 samples a second at about 30 us each are 0.3 % of the training thread's time, and a minute
#: of training gives 6,000 samples, 1 % of which is still 60.
PERIOD_S = 0.010
#: While sampling, a thread that wants the interpreter lock asks for it after 0.5 ms instead of 5. A loop that
#: calls into torch gives the lock away and takes it back at once, about every millisecond, and each time
#: restarts the wait of whoever else wants it: with 5 ms the sampler never sees such a loop (0 of 360 expected
#: samples were booked on its line, 218 with 0.5 ms).
SWITCH_S = 0.0005
#: Distinct lines kept; a training loop has hundreds. Beyond that only lines already known are counted.
_MAX_LINES = 10_000

_Key = tuple[Phase, str, int, str, str]


class StackSampler:
    """Samples one thread while the profiler says that a step is timed.

    ``phase`` is asked for the running phase, or None while nothing should be booked.
    """

    def __init__(self, thread: int, phase: Callable[[], Phase | None]) -> None:
        self._target = thread
        self._phase = phase
        self._counts: dict[_Key, int] = {}
        self._samples = 0
        self._slept_s = 0.0
        #: What sampling itself took, seconds of the sampler's thread; it competes with training for the lock.
        self.cost_s = 0.0
        self._stop = threading.Event()
        self._switch_before = SWITCH_S
        self._thread = threading.Thread(target=self._run, name="perfkit sampler", daemon=True)

    @property
    def running(self) -> bool:
        """Whether it samples."""
        return self._thread.is_alive() and not self._stop.is_set()

    def start(self) -> None:
        """Begin to sample."""
        self._switch_before = sys.getswitchinterval()
        if self._switch_before > SWITCH_S:
            sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def stop(self) -> None:
        """End sampling; what was counted stays."""
        if self._stop.is_set():
            return
        self._stop.set()
        if abs(sys.getswitchinterval() - SWITCH_S) < 1e-6:  # still ours: the program has set no other since
            sys.setswitchinterval(self._switch_before)
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._stop.wait(PERIOD_S):
            now = time.perf_counter()
            waited, last = now - last, now
            worked = time.thread_time()
            phase = self._phase()
            if phase is None:
                continue
            frame = sys._current_frames().get(self._target)
            site = find_callsite(frame)
            # The frame keeps the loop's locals, and with them a batch on the device, alive.
            del frame
            if site is not None:
                key = (phase, site.file, site.line, site.function, site.owner)
                if key in self._counts or len(self._counts) < _MAX_LINES:
                    self._counts[key] = self._counts.get(key, 0) + 1
            self._samples += 1
            self._slept_s += waited
            # CPU time: on a busy machine most of the wall time is waiting for the lock, which costs training nothing.
            self.cost_s += time.thread_time() - worked

    def rows(self, steps: int) -> tuple[int, tuple[LineRow, ...]]:
        """Period between samples in ns as it was in fact, and host time per line and step, the most first."""
        if not self._samples or not steps:
            return round(PERIOD_S * 1e9), ()
        period_ns = self._slept_s / self._samples * 1e9
        counts = list(self._counts.items())
        rows = [
            LineRow(
                file=file,
                line=line,
                function=function,
                owner=owner,
                phase=phase,
                samples=count,
                host_ns=round(count * period_ns / steps),
            )
            for (phase, file, line, function, owner), count in counts
        ]
        return round(period_ns), tuple(sorted(rows, key=lambda row: -row.samples))
