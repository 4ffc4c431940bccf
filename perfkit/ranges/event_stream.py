"""Decoding the events that a thread writes: into counts and times per range, or into spans.

A thread writes a range's number, then the time; at its end the complement of the number, then the time. The stream is
decoded like a program for a stack machine: a number (small) is pushed, a time (large) belongs to the number on top. So
it may be cut anywhere, and an event between the two appends of another one does no harm (from a signal handler, a
garbage collection, or a generator that ended in another thread).

Self time is the time in which a range was the one begun last of those open in its thread: the time it spent outside
other ranges. It is defined for coroutines that interleave too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

#: Numbers are below, times above: the clock passes a millisecond (2^20 ns) long before Python has started.
_TIMES = 1 << 20

#: Values of one range: a begin and an end, of two each.
VALUES_PER_RANGE = 4

#: Maximum number of ranges open at once in one thread. Python's recursion limit is 1000; only begins without ends reach
#: this.
MAX_OPEN = 10_000

#: Number of values from which decoding at once costs less than one by one (a third, for thousands).
_MANY = 400

BUCKETS = 64


class RangeSums:
    """The counts and times of one range in one thread."""

    __slots__ = ("count", "hist", "max_ns", "min_ns", "self_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.total_ns = self.self_ns = self.max_ns = 0
        self.min_ns = 1 << 63
        self.hist = [0] * BUCKETS

    def add(self, count: int, total_ns: int, self_ns: int, min_ns: int, max_ns: int) -> None:
        """Add ``count`` entries of the range."""
        self.count += count
        self.total_ns += total_ns
        self.self_ns += self_ns
        self.min_ns = min(self.min_ns, min_ns)
        self.max_ns = max(self.max_ns, max_ns)


class OpenRange(NamedTuple):
    """A range that has begun and not ended; ``depth`` is how many were open when it began."""

    number: int
    begin_ns: int
    depth: int


class EventStream:
    """The events of one thread, decoded one by one as far as they have been read.

    ``dropped`` counts ends without a begin and begins beyond `MAX_OPEN`.
    """

    def __init__(self) -> None:
        self.dropped = 0
        #: [number, begin, self time so far, depth] of the ranges open now, in the order they began.
        self._opened: list[list[int]] = []
        self._pending: list[int] = []  # numbers whose times have not been read yet
        self._last_ns = 0

    @property
    def opened(self) -> list[OpenRange]:
        """The ranges open now, in the order they began."""
        return [OpenRange(number, begin_ns, depth) for number, begin_ns, _, depth in self._opened]

    def read(self, values: Sequence[int]) -> None:
        """Decode the next values of the thread."""
        self._read_one_by_one(values)
        if len(self._opened) > MAX_OPEN:
            self.dropped += len(self._opened) - MAX_OPEN
            del self._opened[: len(self._opened) - MAX_OPEN]

    def ended(self, entry: list[int], end_ns: int) -> None:
        """Called for each range that has ended, with its entry of the open ranges."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forget what is open, because events in between are lost: the ends of it will not be recognized."""
        self.dropped += len(self._opened)
        self._opened.clear()
        self._pending.clear()

    def _read_one_by_one(self, values: Sequence[int]) -> None:
        pending, opened, last, ended = self._pending, self._opened, self._last_ns, self.ended
        for value in values:
            if value < _TIMES:
                pending.append(value)
                continue
            number = pending.pop()
            if opened:
                opened[-1][2] += value - last
            last = value
            if number >= 0:
                opened.append([number, value, 0, len(opened)])
                continue
            if opened and opened[-1][0] == ~number:
                ended(opened.pop(), value)
            else:
                # Out of order: of the open ones with this number, the one that began last.
                index = next((i for i in reversed(range(len(opened))) if opened[i][0] == ~number), None)
                if index is None:
                    self.dropped += 1
                else:
                    ended(opened.pop(index), value)
        self._last_ns = last


class SpanStream(EventStream):
    """Decodes a part of another stream into ``spans``: (number, begin, end, depth) of each range that ended in it.

    It starts where ``stream`` stands now.
    """

    def __init__(self, stream: EventStream) -> None:
        super().__init__()
        self._opened = [[number, begin, 0, depth] for depth, (number, begin, _, _) in enumerate(stream._opened)]
        self._pending = list(stream._pending)
        self.spans: list[tuple[int, int, int, int]] = []

    def ended(self, entry: list[int], end_ns: int) -> None:
        """Keep the span."""
        number, begin_ns, _, depth = entry
        self.spans.append((number, begin_ns, end_ns, depth))


class SumStream(EventStream):
    """Adds up the ranges of a thread in the sums that ``sums_of(number)`` returns."""

    def __init__(self, sums_of: Callable[[int], RangeSums]) -> None:
        super().__init__()
        self._sums_of = sums_of

    def read(self, values: Sequence[int]) -> None:
        """Decode the next values of the thread, at once where there are many and they nest."""
        if len(values) >= _MANY and not self._pending:
            paired = len(values) & ~1
            if self._read_at_once(values[:paired]):
                values = values[paired:]
        super().read(values)

    def ended(self, entry: list[int], end_ns: int) -> None:
        """Add the range to its sums."""
        number, begin_ns, self_ns, _ = entry
        duration = end_ns - begin_ns
        sums = self._sums_of(number)
        # Not `add`: one call fewer for every range of a short drain.
        sums.count += 1
        sums.total_ns += duration
        sums.self_ns += self_ns
        if duration < sums.min_ns:
            sums.min_ns = duration
        if duration > sums.max_ns:
            sums.max_ns = duration
        # Negative only where a generator ended in a thread whose clock is some ns behind.
        sums.hist[duration.bit_length() - 1 if duration > 0 else 0] += 1

    def _read_at_once(self, values: Sequence[int]) -> bool:
        """Decode whole pairs that nest; return False, and do nothing, where the values are not that."""
        words = np.frombuffer(array("q", values), dtype=np.int64)
        if words[0::2].max() >= _TIMES or words[1::2].min() < _TIMES:
            return False
        # Ranges that are open already begin the stream again, at the time up to which they have been decoded.
        before = len(self._opened)
        carried = np.array(self._opened, dtype=np.int64).reshape(before, 4)
        numbers = np.concatenate((carried[:, 0], words[0::2]))
        times = np.concatenate((np.full(before, self._last_ns), words[1::2]))
        begins = numbers >= 0
        depth = np.cumsum(np.where(begins, 1, -1))
        if depth.min() < 0 or depth.max() > np.iinfo(np.int16).max:
            return False

        # On its own level every begin is followed by its end, unless it is still open. (For 16-bit integers a stable
        # sort is a radix sort.)
        by_level = np.argsort(np.where(begins, depth, depth + 1).astype(np.int16), kind="stable")
        begin_here = begins[by_level]
        positions = np.flatnonzero(begin_here)
        closed = np.append(~begin_here[1:], False)[positions]
        first = by_level[positions]
        last = by_level[positions[closed] + 1]
        if (numbers[first[closed]] != ~numbers[last]).any():
            return False

        # The time after an event belongs to the innermost range: on the level of its depth, the events from one begin
        # to the next are those of one range.
        gaps = np.diff(times, append=times[-1])
        by_depth = np.argsort(depth.astype(np.int16), kind="stable")
        self_ns = np.add.reduceat(gaps[by_depth], np.flatnonzero(begins[by_depth]))
        self_ns[first < before] += carried[first[first < before], 2]
        times[:before] = carried[:, 1]
        depth -= 1
        depth[:before] = carried[:, 3]

        still_open = first[~closed]
        columns = (numbers[still_open], times[still_open], self_ns[~closed], depth[still_open])
        self._opened = np.stack(columns, axis=1).tolist()
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
