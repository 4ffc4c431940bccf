"""From the events of a thread to counts and times per range.

A thread writes a range's number, then the time; at its end the complement of the number, then the time.
The stream is read like a program for a stack machine: a number (small) is pushed, a time (large) belongs
to the number on top. So an event that came between the two appends of another one, from a signal handler,
a garbage collection, or a generator that ended in a foreign thread, spoils nothing, and the stream may be
cut anywhere.

Self time is the time in which a range was the one begun last of those open in its thread: what it spent
outside other ranges, and defined for coroutines that interleave too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

#: Numbers lie below, times above: the clock passes a millisecond (2^20 ns) long before Python has started.
_TIMES = 1 << 20

#: Ranges open at once in one thread. Python's own recursion limit is 1000; only begins without ends come here.
MAX_OPEN = 10_000

#: From this many values on, reading them at once costs less than one by one (a third, for thousands).
_MANY = 400

BUCKETS = 64


class Sums:
    """What is kept of one range in one thread."""

    __slots__ = ("count", "hist", "max_ns", "min_ns", "self_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.total_ns = self.self_ns = self.max_ns = 0
        self.min_ns = 1 << 63
        self.hist = [0] * BUCKETS

    def add(self, count: int, total_ns: int, self_ns: int, min_ns: int, max_ns: int) -> None:
        self.count += count
        self.total_ns += total_ns
        self.self_ns += self_ns
        # Not min() and max(): this runs for every range of a short drain.
        if min_ns < self.min_ns:
            self.min_ns = min_ns
        if max_ns > self.max_ns:
            self.max_ns = max_ns


class Stream:
    """How far the events of one thread have been read.

    ``opened`` holds [number, begin, self time so far] of the ranges open now, in the order they began, from
    one `read` to the next; ``dropped`` counts ends without a begin and begins beyond `MAX_OPEN`.
    """

    def __init__(self, sums_of: Callable[[int], Sums]) -> None:
        self.opened: list[list[int]] = []
        self.dropped = 0
        self._sums_of = sums_of
        self._pending: list[int] = []  # numbers whose times have not been read yet
        self._last_ns = 0

    def read(self, values: list[int]) -> None:
        """Read on."""
        if len(values) >= _MANY and not self._pending:
            paired = len(values) & ~1
            if self._read_at_once(values[:paired]):
                values = values[paired:]
        self._read_one_by_one(values)
        if len(self.opened) > MAX_OPEN:
            self.dropped += len(self.opened) - MAX_OPEN
            del self.opened[: len(self.opened) - MAX_OPEN]

    def forget(self) -> None:
        """Begin anew: events in between are lost, so the ends of what is open now will not be recognized."""
        self.dropped += len(self.opened)
        self.opened.clear()
        self._pending.clear()

    def _read_one_by_one(self, values: list[int]) -> None:
        pending, opened, last = self._pending, self.opened, self._last_ns
        for value in values:
            if value < _TIMES:
                pending.append(value)
                continue
            number = pending.pop()
            if opened:
                opened[-1][2] += value - last
            last = value
            if number >= 0:
                opened.append([number, value, 0])
                continue
            if opened and opened[-1][0] == ~number:
                number, begin, self_ns = opened.pop()
            else:
                # Out of order: of the open ones with this number the one that began last.
                index = next((i for i in reversed(range(len(opened))) if opened[i][0] == ~number), None)
                if index is None:
                    self.dropped += 1
                    continue
                number, begin, self_ns = opened.pop(index)
            duration = value - begin
            sums = self._sums_of(number)
            sums.add(1, duration, self_ns, duration, duration)
            # Below zero only where a generator ended in a thread whose clock is some ns behind.
            sums.hist[duration.bit_length() - 1 if duration > 0 else 0] += 1
        self._last_ns = last

    def _read_at_once(self, values: list[int]) -> bool:
        """The same for a stream of whole pairs that nest; False, and nothing done, where it is not one."""
        words = np.frombuffer(array("q", values), dtype=np.int64)
        if words[0::2].max() >= _TIMES or words[1::2].min() < _TIMES:
            return False
        # Ranges that are open already begin the stream again, at the time up to which they have been read.
        before = len(self.opened)
        carried = np.array(self.opened, dtype=np.int64).reshape(before, 3)
        numbers = np.concatenate((carried[:, 0], words[0::2]))
        times = np.concatenate((np.full(before, self._last_ns), words[1::2]))
        begins = numbers >= 0
        depth = np.cumsum(np.where(begins, 1, -1))
        if depth.min() < 0 or depth.max() > np.iinfo(np.int16).max:
            return False

        # On its own level every begin is followed by its end, unless it is still open. (Sorting 16-bit
        # integers stably is a radix sort.)
        by_level = np.argsort(np.where(begins, depth, depth + 1).astype(np.int16), kind="stable")
        begin_here = begins[by_level]
        positions = np.flatnonzero(begin_here)
        closed = np.append(~begin_here[1:], False)[positions]
        first = by_level[positions]
        last = by_level[positions[closed] + 1]
        if (numbers[first[closed]] != ~numbers[last]).any():
            return False

        # The time after an event belongs to the range that is innermost then: on the level of its depth, the
        # events from one begin to the next are those of one range.
        gaps = np.diff(times, append=times[-1])
        by_depth = np.argsort(depth.astype(np.int16), kind="stable")
        self_ns = np.add.reduceat(gaps[by_depth], np.flatnonzero(begins[by_depth]))
        self_ns[first < before] += carried[first[first < before], 2]
        times[:before] = carried[:, 1]

        still_open = zip(numbers[first[~closed]], times[first[~closed]], self_ns[~closed], strict=True)
        self.opened = [[int(value) for value in entry] for entry in still_open]
        self._last_ns = values[-1]
        if closed.any():
            self._add(numbers[last], times[last] - times[first[closed]], self_ns[closed])
        return True

    def _add(self, inverses: np.ndarray, durations: np.ndarray, self_ns: np.ndarray) -> None:
        by_number = np.argsort(inverses, kind="stable")
        inverses, durations, self_ns = inverses[by_number], durations[by_number], self_ns[by_number]
        changes = np.append(True, inverses[1:] != inverses[:-1])
        starts = np.flatnonzero(changes)
        groups = np.cumsum(changes) - 1
        buckets = np.clip(np.frexp(durations.astype(np.float64))[1] - 1, 0, BUCKETS - 1)
        hist = np.bincount(groups * BUCKETS + buckets, minlength=len(starts) * BUCKETS).reshape(-1, BUCKETS)
        columns = (
            np.diff(starts, append=len(inverses)),
            np.add.reduceat(durations, starts),
            np.add.reduceat(self_ns, starts),
            np.minimum.reduceat(durations, starts),
            np.maximum.reduceat(durations, starts),
        )
        for inverse, counts, *row in zip(inverses[starts].tolist(), hist, *(c.tolist() for c in columns), strict=True):
            sums = self._sums_of(~inverse)
            sums.add(*row)
            for bucket in np.flatnonzero(counts).tolist():
                sums.hist[bucket] += int(counts[bucket])
