"""Columns of integers as bytes: a page holds five times as many events as with decimal numbers."""

from __future__ import annotations

import numpy as np

from perfkit.trace.intervals import Ints


def packed(values: Ints) -> bytes:
    """Non-negative integers, seven bits per byte, the lowest first; the highest bit is set if more follow."""
    left = np.asarray(values, np.uint64)
    widths = np.ones(left.size, np.int64)
    for bits in range(7, 64, 7):
        widths += left >= np.uint64(1 << bits)
    at = np.cumsum(widths) - widths
    column = np.zeros(int(widths.sum()), np.uint8)
    while left.size:
        more = left >= 128
        column[at] = (left & np.uint64(127)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        at, left = at[more] + 1, left[more] >> np.uint64(7)
    return column.tobytes()


def unpacked(column: bytes) -> Ints:
    """The integers of a column.

    Raises:
        ValueError: the column ends inside a number, or has one that is too large.
    """
    parts = np.frombuffer(column, np.uint8)
    ends = np.flatnonzero(parts < 128)
    if parts.size and (not ends.size or ends[-1] != parts.size - 1):
        raise ValueError("the column ends inside a number")
    starts = np.append(0, ends[:-1] + 1) if ends.size else ends
    if ends.size and int((ends - starts).max()) > 8:
        raise ValueError("a number of the column has more than 63 bits")
    shift = 7 * (np.arange(parts.size) - np.repeat(starts, ends - starts + 1))
    shifted = (parts & 127).astype(np.int64) << shift
    return np.add.reduceat(shifted, starts) if starts.size else np.zeros(0, np.int64)
