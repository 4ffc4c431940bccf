from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.trace import nesting
from perfkit.trace.nesting import find_innermost, find_parents, nearest_ancestor, order_of_codes, overlap

events = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(0, 15)), max_size=14)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    track, start, length = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return track, start, start + length


def open_that_began_last(start: np.ndarray, end: np.ndarray, time: int) -> int:
    """The definition, read aloud: of the open events the one that began last; the shorter, the later of equals."""
    open_ = [i for i in range(start.size) if start[i] <= time < end[i]]
    return max(open_, key=lambda i: (start[i], -end[i], i), default=-1)


@settings(max_examples=300)
@given(events)
def test_the_innermost_event_is_the_open_one_that_began_last(rows: list[tuple[int, int, int]]) -> None:
    _, start, end = columns(rows)

    segments = find_innermost(start, end)

    found = dict.fromkeys(range(45), -1)
    for a, b, owner in zip(*(column.tolist() for column in segments), strict=True):
        found.update(dict.fromkeys(range(a, b), owner))
    assert found == {t: open_that_began_last(start, end, t) for t in range(45)}


@settings(max_examples=300)
@given(events)
def test_a_parent_contains_its_event_and_is_on_the_same_track(rows: list[tuple[int, int, int]]) -> None:
    track, start, end = columns(rows)

    parent = find_parents(track, start, end)

    for i, p in enumerate(parent.tolist()):
        if p >= 0:
            assert track[p] == track[i]
            assert start[p] <= start[i]
            assert end[i] <= end[p]
            assert p != i


@settings(max_examples=300)
@given(events)
def test_where_nothing_crosses_the_parent_is_the_closest_container(rows: list[tuple[int, int, int]]) -> None:
    track, start, end = columns(rows)
    n = range(len(rows))
    crossing = any(track[i] == track[j] and start[i] < start[j] < end[i] < end[j] for i in n for j in n)
    long_ = end > start

    parent = find_parents(track, start, end)

    if not crossing:
        order = {i: (start[i], -end[i], i) for i in n}
        for i in np.flatnonzero(long_).tolist():
            same = [j for j in n if long_[j] and track[j] == track[i] and order[j] < order[i]]
            around = [j for j in same if end[i] <= end[j]]
            assert parent[i] == max(around, key=lambda j: order[j], default=-1)


def test_a_range_that_outlives_the_frame_it_began_in_keeps_its_length() -> None:
    # record_function.__enter__ (0 to 5) contains the start of the range (3 to 90); an op follows in the range.
    track, start, end = np.zeros(3, np.int64), np.array([0, 3, 40]), np.array([5, 90, 50])

    assert find_parents(track, start, end).tolist() == [-1, -1, 1]
    segments = find_innermost(start, end)
    assert segments.starts.tolist() == [0, 3, 5, 40, 50]
    assert segments.ends.tolist() == [3, 5, 40, 50, 90]
    assert segments.owner.tolist() == [0, 1, 1, 2, 1]


def test_intervals_are_cut_by_owner() -> None:
    segments = find_innermost(np.array([0, 10]), np.array([100, 20]))

    pieces = overlap(segments, np.array([5, 95]), np.array([15, 200]))

    assert [p.tolist() for p in pieces] == [[0, 0, 1], [0, 1, 0], [5, 10, 95], [10, 15, 100]]


@pytest.mark.parametrize("depth", [200_000])
def test_a_chain_as_deep_as_the_file_is_long_costs_no_quadratic_time(depth: int) -> None:
    at = np.arange(depth)

    parent = find_parents(np.zeros(depth, np.int64), at, 3 * depth - at)
    root = nearest_ancestor(at == 0, parent)

    assert parent.tolist()[:3] == [-1, 0, 1]
    assert (root[1:] == 0).all()


def test_one_event_that_outlives_thousands_of_open_ones_is_found_one_by_one_and_equally() -> None:
    # A staircase: each event lies in the one before, and the last begins in all of them and outlives all but one.
    depth = 5 * nesting.MAX_ROUNDS
    start = np.arange(depth + 1)
    end = np.append(4 * depth - start[:-1], 4 * depth)
    track = np.zeros(depth + 1, np.int64)

    parent = find_parents(track, start, end)
    segments = find_innermost(start, end)

    assert parent.tolist() == [*range(-1, depth - 1), 0]
    assert (segments.owner[segments.starts >= depth] == depth).all()
    assert segments.ends[-1] == 4 * depth
    # The other way: all end while the innermost query must climb the whole stair.
    tall = find_innermost(np.append(np.arange(depth), 1), np.append(3 * depth - np.arange(depth), 2 * depth))
    assert tall.owner[-1] == 0


@settings(max_examples=200)
@given(events)
def test_looking_together_and_one_by_one_find_the_same(rows: list[tuple[int, int, int]]) -> None:
    track, start, end = columns(rows)
    together = find_parents(track, start, end), find_innermost(start, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "MAX_ROUNDS", 0)
        in_turn = find_parents(track, start, end), find_innermost(start, end)

    np.testing.assert_array_equal(together[0], in_turn[0])
    for one, other in zip(together[1], in_turn[1], strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=100)
@given(events, st.lists(st.booleans(), min_size=14, max_size=14), st.integers(1, 6))
def test_parents_among_some_events_are_those_of_the_events_alone(
    rows: list[tuple[int, int, int]], chosen: list[bool], batch: int
) -> None:
    track, start, end = columns(rows)
    among = np.flatnonzero(np.array(chosen[: len(rows)], bool))

    alone = find_parents(track[among], start[among], end[among])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "BATCH", batch)
        parent = find_parents(track, start, end, among)

    assert parent[among].tolist() == [-1 if p < 0 else among[p] for p in alone.tolist()]
    assert (np.delete(parent, among) == -1).all()


@given(st.lists(st.sampled_from([-1, 0, 1, 3, 2**16 - 1, 2**16, 2**30]), max_size=20))
def test_equal_codes_keep_their_order_whatever_their_size(codes: list[int]) -> None:
    order = order_of_codes(np.array(codes, np.int64))

    assert order.tolist() == sorted(range(len(codes)), key=lambda i: codes[i])
