"""The one clock of a run: ``perf_counter_ns``, replaceable in tests.

Every time in a run folder is read from here, so that ranges, steps and windows share one time base.
Callers write ``_clock.now_ns()`` and never bind the function, except on paths whose cost is the
product (ranges), which bind ``time.perf_counter_ns`` and are tested by their order, not their times.
"""

from __future__ import annotations

import time

now_ns = time.perf_counter_ns


def clock_pair() -> tuple[int, int]:
    """Read (perf_ns, unix_ns) for one instant: what maps a run's times to Kineto's, which are unix times.

    The unix clock is read between two readings of ours and paired with their middle; of five tries the
    tightest is kept, so that being descheduled in between cannot spoil the pair.
    """
    best: tuple[int, int, int] | None = None
    for _ in range(5):
        before = now_ns()
        unix = time.time_ns()
        after = now_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, unix)
    assert best is not None
    return best[1], best[2]
