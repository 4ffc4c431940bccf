"""How soon the interpreter hands its lock over: soon while a sampler waits for it, as usual while it looks."""

from __future__ import annotations

import sys

#: While a sampler waits, a thread that wants the interpreter lock asks for it after 0.05 ms instead of 5. A loop that
#: calls into torch gives the lock away and takes it back at once, and each time restarts the wait of whoever else wants
#: it: with 5 ms the sampler never sees such a loop (0 of 360 expected samples were booked on its line, 218 with
#: 0.5 ms), and the Python between its ops only where that lasts longer than the wait: of a step with 76 % of its time
#: in Python, 1 ms at a time, 0.5 ms saw 0, 8 and 24 %, 0.1 ms 15 to 50 and 0.05 ms 49 to 58 %. Another thread that
#: keeps the lock holds training up less by it (2 steps a second with 5 ms, 10 with 0.5, 50 to 90 with 0.05), and has
#: itself a fifth less.
SWITCH_S = 0.00005
#: Python's own; that of a worker whose parent was being sampled when it forked is not known.
_USUAL_S = 0.005


class SwitchInterval:
    """The interval of this process. One that the program sets in between is its own, and stays."""

    def __init__(self) -> None:
        self._usual_s = _USUAL_S

    def shorten(self) -> None:
        """Let a thread that waits for the lock have it soon."""
        now_s = sys.getswitchinterval()
        if now_s > SWITCH_S and not _is_ours(now_s):
            self._usual_s = now_s
            sys.setswitchinterval(SWITCH_S)

    def restore(self) -> None:
        """Put back what was there before `shorten`."""
        if _is_ours(sys.getswitchinterval()):
            sys.setswitchinterval(self._usual_s)


def _is_ours(interval_s: float) -> bool:
    # Python keeps whole microseconds.
    return abs(interval_s - SWITCH_S) < 1e-6
