"""Levels of memory over time, and the allocations that were alive at a peak."""

from __future__ import annotations

import numpy as np

from perfkit.measures.results.memory import MemoryTimeline
from perfkit.trace.intervals import Codes, Ints

#: Levels of a timeline: about two for each column of a figure in a page.
BUCKETS = 1_000
#: Holders that are listed: a model's largest twenty hold most of its memory.
MAX_HOLDERS = 20


def levels_at(times: Ints, level: Ints, before: int, wanted: Ints) -> Ints:
    """The level just before each wanted time; ``before`` is the one before the first of ``times``."""
    at = np.searchsorted(times, wanted, side="left") - 1
    return np.where(at >= 0, level[np.maximum(at, 0)], before)


def timeline(
    times: Ints, level: Ints, before: int, reserved: Ints | None, first_ns: int, last_ns: int
) -> MemoryTimeline:
    """The levels after each of these rising times, in at most `BUCKETS` buckets from ``first_ns`` to ``last_ns``."""
    bucket_ns = max(1, -(-(last_ns + 1 - first_ns) // BUCKETS))
    starts = first_ns + bucket_ns * np.arange((last_ns - first_ns) // bucket_ns + 1)
    bucket = (times - first_ns) // bucket_ns

    def highest(levels: Ints, first: int) -> tuple[int, ...]:
        found = levels_at(times, levels, first, starts)
        np.maximum.at(found, bucket, levels)
        return tuple(found.tolist())

    return MemoryTimeline(
        start_ns=first_ns,
        bucket_ns=bucket_ns,
        allocated_bytes=highest(level, before),
        reserved_bytes=highest(reserved, int(reserved[0])) if reserved is not None else (),
    )


def alive_at(peak: int, change: Ints, address: Ints | Codes) -> Ints:
    """Positions of the allocations up to ``peak`` that were not freed by then; equal addresses have equal codes."""
    order = np.argsort(address, kind="stable")
    # The next event at an address, even an allocation whose free was lost, ends the one before it.
    ended = np.full(order.size, order.size)
    same = address[order[1:]] == address[order[:-1]]
    ended[order[:-1][same]] = order[1:][same]
    return np.flatnonzero((change > 0) & (np.arange(order.size) <= peak) & (ended > peak))
