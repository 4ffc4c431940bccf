"""ranges.npz and ranges-N.npz: the ranges that a program marks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perfkit.run.records.steps import Amount, Count, Maximum, Minimum


def _add_each(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int.__add__, first, second))


class RangeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a range in a window; ``end_ns`` is None where it was still open when the window ended.

    ``depth`` is the number of ranges that were open in its thread when it began. Times are of the run's clock.
    """

    name: str
    category: str
    domain: str
    thread: str
    start_ns: Count
    end_ns: Count | None
    depth: int


class RangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One range of ranges.npz: how often it ran and how long. ``hist[i]`` counts durations in [2^i, 2^(i+1)) ns.

    ``device_ns`` is the device's time for ``device_count`` of its runs; both are None where it was not measured.
    """

    name: str
    category: str
    domain: str
    thread: str
    count: Amount
    total_ns: Amount
    self_ns: Amount
    min_ns: Minimum
    max_ns: Maximum
    hist: Annotated[tuple[int, ...], _add_each]
    device_count: Amount | None = None
    device_ns: Amount | None = None
