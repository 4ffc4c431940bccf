"""The clock of a run: ``perf_counter_ns``, replaceable in tests.

Every time in a run folder is read here, so that ranges, steps and windows share one time base. Callers write
``_clock.now_ns()`` and do not bind the function. The exception are ranges, whose cost matters most: they bind
``time.perf_counter_ns``, and their tests check order, not times.
"""

from __future__ import annotations

import time

now_ns = time.perf_counter_ns
#: Bound here, because a program may replace it: one that runs at a time of its own choice.
_unix_ns = time.time_ns


def clock_pair() -> tuple[int, int]:
    """Read (perf_ns, unix_ns) of one instant, which converts a run's times to the unix times of Kineto.

    The unix clock is read between two readings of `now_ns` and paired with their middle. Of five attempts the one with
    the shortest distance is kept, because the process may be descheduled in between.
    """
    best: tuple[int, int, int] | None = None
    for _ in range(5):
        before = now_ns()
        unix = _unix_ns()
        after = now_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, unix)
    assert best is not None
    return best[1], best[2]
