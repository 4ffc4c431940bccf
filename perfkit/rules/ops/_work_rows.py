"""Rows of the work of ops: the line that takes most of their time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime


def busiest_place(rows: Iterable[OpWorkTime]) -> Location | None:
    """The line in which most of the time of these rows passes; None where no line is known."""
    times: Counter[Location] = Counter()
    for row in rows:
        if row.at is not None:
            times[row.at] += row.ns
    return max(times, key=lambda at: times[at], default=None)
