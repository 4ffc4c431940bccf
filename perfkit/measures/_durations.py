"""How long events of one name take: count, total, mean, deviation, shortest and longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Bools, Codes, Ints


class Durations(TypedDict):
    """The fields of `perfkit.measures.results.kernels.NameTime`."""

    name: str
    count: int
    total_ns: int
    mean_ns: float
    deviation_ns: float
    min_ns: int
    max_ns: int


def durations_by(group: Ints | Codes, names: Sequence[str], trace: Trace, rows: Ints) -> list[tuple[int, Durations]]:
    """The durations of these rows by group, longest total first.

    Args:
        group: For each of ``rows`` the number of its group, from 0 on.
        names: The name of each group.
        trace: The trace that has these rows.
        rows: Row numbers.
    """
    if not rows.size:
        return []
    duration = trace.duration_ns[rows]
    groups = int(group.max()) + 1
    count = np.bincount(group, minlength=groups)
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, duration)
    mean = total / np.maximum(count, 1)
    # From the mean, not from the sum of squares: those of a long trace no longer fit into a float exactly.
    squares = np.bincount(group, weights=(duration - mean[group]) ** 2, minlength=groups)
    # Of a sample, as nsys has it: divided by n - 1, and 0 for a single one.
    deviation = np.sqrt(squares / np.maximum(count - 1, 1))
    shortest = np.full(groups, np.iinfo(np.int64).max)
    longest = np.zeros(groups, np.int64)
    np.minimum.at(shortest, group, duration)
    np.maximum.at(longest, group, duration)
    return [
        (
            number,
            Durations(
                name=names[number],
                count=int(count[number]),
                total_ns=int(total[number]),
                mean_ns=float(mean[number]),
                deviation_ns=float(deviation[number]),
                min_ns=int(shortest[number]),
                max_ns=int(longest[number]),
            ),
        )
        for number in np.argsort(-total, kind="stable").tolist()
        if count[number]
    ]


def durations_by_name(trace: Trace, wanted: Bools) -> list[Durations]:
    """The durations of the wanted rows by their names, longest total first."""
    rows = np.flatnonzero(wanted)
    return [durations for _, durations in durations_by(trace.name[rows], trace.names, trace, rows)]
