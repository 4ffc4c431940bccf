"""Which rank of a running training the others wait for, from the newest rows of each: what `perfkit watch` has read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from perfkit.measures.ranks.rank_times import measure_rank_times
from perfkit.rules.ranks.slow_rank import check
from perfkit.run.follower import RunFollower

#: The newest steps that are compared: as many as the step time next to it is the median of.
_COMPARED = 64
#: The share of the time that comparing may take: with a thousand ranks it takes a quarter of a second.
_SHARE = 0.05


class LateNow(NamedTuple):
    """A rank, what its lateness costs per step, and a sentence with the cause as far as rows show it."""

    rank: int
    cost_ns: int
    message: str


class LateRank:
    """Follows which rank is late; ``now`` is None where none is, or rows do not show it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now: LateNow | None = None
        self._clock = clock
        self._due_s = clock()

    def update(self, live: RunFollower) -> None:
        """Compare the newest steps that all ranks have, unless that was done a moment ago."""
        began_s = self._clock()
        if began_s < self._due_s:
            return
        self.now = _late_rank(live)
        ended_s = self._clock()
        self._due_s = ended_s + (ended_s - began_s) / _SHARE


def _late_rank(live: RunFollower) -> LateNow | None:
    started = [one for one in live.ranks.values() if one.tail.rows]
    if len(started) < 2:
        return None
    # Ranks are read in turns: one may be some refreshes behind.
    last = min(one.tail.rows[-1].step for one in started)
    ranks = measure_rank_times(
        (one.index, [row for row in one.tail.rows if last - _COMPARED < row.step <= last], None, one.rank)
        for one in started
    )
    if ranks is None or ranks.waited_for is None:
        return None
    finding = next(check(ranks), None)
    if finding is None or finding.cost_ns is None:
        return None
    return LateNow(ranks.waited_for.rank, finding.cost_ns, finding.message)
