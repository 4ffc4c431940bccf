"""The interpreter's switch interval: short while a sampler waits for the interpreter lock, the usual one otherwise.

A sampler's thread also waits to the microsecond, which a thread does not by itself (`wait_exactly`).
"""

from __future__ import annotations

import ctypes
import sys

#: While a sampler waits, it asks for the interpreter lock after 0.02 ms instead of Python's 5 ms. A loop that calls
#: into torch releases the lock and takes it again at once, which restarts the wait of every other thread: with 5 ms
#: the sampler never sees such a loop (0 of 360 expected samples on its line, 218 with 0.5 ms), and the Python between
#: its ops only where that lasts longer than the wait. Python that takes 86% of a loop, 0.1 ms at a time, had 13% of the
#: samples with 0.05 ms, 46% with `wait_exactly` too, 67% with that and 0.02 ms (75%, 0.05 ms at a time: 0, 7 and 9%);
#: 0.01 ms sees more of the shortest (38%), with 0.005 a sample took up to 1.9 ms. Another thread that keeps the lock
#: delays training less (6 steps per second without perfkit, 142 with 0.05 ms, 164 with 0.02), and itself gets a quarter
#: less done with each of them. One machine, 2 cores.
SWITCH_S = 0.00002
#: ``PR_SET_TIMERSLACK`` of Linux: by how many ns the waits of the calling thread may be late, 50,000 by itself.
_SET_SLACK, _SLACK_NS = 29, 1
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


def wait_exactly() -> None:
    """Let no wait of the calling thread end later than it asks for, on Linux.

    A thread that waits for the interpreter lock asks again and again with short waits.
    """
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).prctl(_SET_SLACK, _SLACK_NS, 0, 0, 0)
        except (OSError, AttributeError):  # a libc without it: waits are late
            return


def _is_short(interval_s: float) -> bool:
    # Python keeps whole microseconds.
    return abs(interval_s - SWITCH_S) < 1e-6
