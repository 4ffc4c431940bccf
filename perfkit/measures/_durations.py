"""How long events of one name take: count, total, share, mean, median, deviation, shortest and longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfkit.trace.columns import Trace
from perfkit.trace.intervals import Bools, Codes, Ints

#: The fields of a `perfkit.measures.results.kernels.NameTime`.
Durations = dict[str, Any]


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
    columns = spread_by(group, trace.duration_ns[rows], int(group.max()) + 1)
    order = np.argsort(-columns["total_ns"], kind="stable").tolist()
    whole = max(1, int(columns["total_ns"].sum()))
    rows_of = {field: column.tolist() for field, column in columns.items()}
    return [
        (
            number,
            {
                "name": names[number],
                **{field: values[number] for field, values in rows_of.items()},
                "share": rows_of["total_ns"][number] / whole,
            },
        )
        for number in order
        if rows_of["count"][number]
    ]


def spread_by(group: Ints | Codes, duration: Ints, groups: int) -> dict[str, npt.NDArray[Any]]:
    """Count, total, mean, median, deviation, minimum and maximum of the durations of each group, 0 to ``groups`` - 1.

    The median of an even number of durations is the mean of the middle two, rounded down.
    """
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
    order = np.lexsort((duration, group))
    ordered = np.append(duration[order], 0)
    first = np.cumsum(count) - count
    low, high = ordered[first + np.maximum(count - 1, 0) // 2], ordered[first + count // 2]
    return {
        "count": count,
        "total_ns": total,
        "mean_ns": mean,
        "median_ns": np.where(count > 0, low + (high - low) // 2, 0),
        "deviation_ns": deviation,
        "min_ns": np.where(count > 0, shortest, 0),
        "max_ns": longest,
    }


def durations_by_name(trace: Trace, wanted: Bools) -> list[Durations]:
    """The durations of the wanted rows by their names, longest total first."""
    rows = np.flatnonzero(wanted)
    return [durations for _, durations in durations_by(trace.name[rows], trace.names, trace, rows)]
