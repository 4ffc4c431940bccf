from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfkit.trace.intervals import Union, clip, common, covered_before, free, joined, union, without

intervals = st.lists(st.tuples(st.integers(-20, 40), st.integers(0, 12)), max_size=12)


def made(pairs: list[tuple[int, int]]) -> Union:
    starts = np.array([start for start, _ in pairs], np.int64)
    return union(starts, starts + np.array([length for _, length in pairs], np.int64))


def points(of: Union) -> set[int]:
    """The unit cells that a union covers: the plainest model of it."""
    return {t for a, b in zip(of.starts.tolist(), of.ends.tolist(), strict=True) for t in range(a, b)}


@given(intervals)
def test_a_union_covers_every_interval_once_and_in_order(pairs: list[tuple[int, int]]) -> None:
    merged = made(pairs)

    assert points(merged) == {t for a, n in pairs for t in range(a, a + n)}
    assert merged.length_ns == len(points(merged))
    assert (merged.starts[1:] > merged.ends[:-1]).all()


@given(intervals, intervals)
def test_common_without_and_joined_are_the_set_operations(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = made(one), made(other)

    assert points(common(a, b)) == points(a) & points(b)
    assert points(without(a, b)) == points(a) - points(b)
    assert points(joined(a, b)) == points(a) | points(b)
    assert common(a, b).length_ns == a.length_ns + b.length_ns - joined(a, b).length_ns


@given(intervals, st.integers(-25, 45), st.integers(0, 30))
def test_a_window_is_its_covered_and_its_free_part(pairs: list[tuple[int, int]], low: int, length: int) -> None:
    of, high = made(pairs), low + length

    assert points(clip(of, low, high)) == {t for t in points(of) if low <= t < high}
    assert clip(of, low, high).length_ns + free(of, low, high).length_ns == length


@given(intervals, st.lists(st.integers(-25, 60), max_size=8))
def test_covered_before_counts_what_lies_before_each_time(pairs: list[tuple[int, int]], times: list[int]) -> None:
    of = made(pairs)

    counted = covered_before(of, np.array(times, np.int64)).tolist()

    assert counted == [sum(t < time for t in points(of)) for time in times]
