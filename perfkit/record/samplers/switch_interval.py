"""The interpreter's switch interval: short while a sampler waits for the interpreter lock, the usual one otherwise."""

from __future__ import annotations

import sys

#: While a sampler waits, it asks for the interpreter lock after 0.05 ms instead of Python's 5 ms. A loop that calls
#: into torch releases the lock and takes it again at once, which restarts the wait of every other thread: with 5 ms
#: the sampler never sees such a loop (0 of 360 expected samples on its line, 218 with 0.5 ms), and the Python between
#: its ops only where that lasts longer than the wait. Of a step with 76% of its time in Python, 1 ms at a time,
#: 0.5 ms saw 0, 8 and 24%, 0.1 ms 15 to 50% and 0.05 ms 49 to 58%. Another thread that keeps the lock delays training
#: less (2 steps per second with 5 ms, 10 with 0.5, 50 to 90 with 0.05), and itself gets a fifth less done.
SWITCH_S = 0.00005
#: Python's default, for a worker whose parent was being sampled when it forked: its own value is not known.
_DEFAULT_S = 0.005


class SwitchInterval:
    """The interval of this process. One that the program sets in between is left as it is."""

    def __init__(self) -> None:
        self._usual_s = _DEFAULT_S
        self._resting = False

    def rest(self) -> None:
        """The usual one, whatever `shorten` asks for, until `resume`: nobody needs a sample.

        A thread that waits wakes at each interval. While 0.8 s of a window were written, whose code keeps the lock, the
        sampler took 38 ms of another core to ask for it.
        """
        self._resting = True
        self.restore()

    def resume(self) -> None:
        """What `shorten` asks for counts again."""
        self._resting = False

    def shorten(self) -> None:
        """Let a thread that waits for the lock have it soon."""
        if self._resting:
            return
        now_s = sys.getswitchinterval()
        if now_s > SWITCH_S and not _is_short(now_s):
            self._usual_s = now_s
            sys.setswitchinterval(SWITCH_S)

    def restore(self) -> None:
        """Set the interval that was there before `shorten`."""
        if _is_short(sys.getswitchinterval()):
            sys.setswitchinterval(self._usual_s)


def _is_short(interval_s: float) -> bool:
    # Python keeps whole microseconds.
    return abs(interval_s - SWITCH_S) < 1e-6
