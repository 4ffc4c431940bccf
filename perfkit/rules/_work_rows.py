"""Rows of the work of ops: the line that takes most of their time, and their limit on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime
from perfkit.run.records import MachineLimits


def busiest_place(rows: Iterable[OpWorkTime]) -> Location | None:
    """The line in which most of the time of these rows passes; None where no line is known."""
    times: Counter[Location] = Counter()
    for row in rows:
        if row.at is not None:
            times[row.at] += row.ns
    return max(times, key=lambda at: times[at], default=None)


def limit_ns(row: OpWorkTime, limits: MachineLimits) -> float:
    """What all calls of a row take at the machine's limit; of ops whose work is not known, their overhead."""
    limit = limits.op_limit_ns(row.flops or 0, row.bytes or 0, row.precision or "", row.kind or "copy", row.depth)
    return row.calls * limit
