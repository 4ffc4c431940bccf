"""The same collective is found on all ranks, and what each waited in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.ranks.collectives import CollectiveRows, Meetings
from perfkit.ranks.rank_columns import RankColumns
from tests.ranks.build import MS, rank_columns


def matched(*ranks: RankColumns) -> Meetings:
    rows = CollectiveRows()
    for position, rank in enumerate(ranks):
        rows.add(position, rank)
    found = rows.match()
    assert found is not None
    return found


def without_numbers(rank: int, steps: int = 4, collectives: int = 3, **changed: Any) -> RankColumns:
    return rank_columns(rank, steps, collectives, collective_sequence=np.full(steps * collectives, -1), **changed)


def together(found: Meetings) -> list[tuple[list[int], set[int]]]:
    """For each meeting the ranks that took part, and the sizes of what they sent."""
    rows = [found.meeting == number for number in range(int(found.meeting.max()) + 1)]
    return [(sorted(found.rank[row].tolist()), set(found.bytes[row].tolist())) for row in rows]


def unmatched(found: Meetings) -> int:
    return int((found.meeting < 0).sum())


def test_equal_sequence_numbers_of_a_group_meet_wherever_recordings_begin() -> None:
    size = np.arange(12) + 1000
    first = rank_columns(0, collective_bytes=size)
    later = rank_columns(1, 3, collective_sequence=np.arange(3, 12), collective_bytes=size[3:])
    found = matched(first, later)
    assert together(found) == [([0, 1], {number}) for number in range(1003, 1012)]
    assert found.lost == ("3 of 21 collectives were found on one rank only",)


def test_equal_numbers_of_different_groups_do_not_meet() -> None:
    ranks = [rank_columns(rank, group_names=(f"tensor {rank // 2}",)) for rank in range(4)]
    assert {tuple(ranks) for ranks, _ in together(matched(*ranks))} == {(0, 1), (2, 3)}


def test_a_number_that_one_rank_has_twice_meets_nothing() -> None:
    twice = rank_columns(1, collective_sequence=np.array([0, 0, *range(2, 12)]))
    found = matched(rank_columns(0), twice)
    assert len(together(found)) == 10


def test_without_numbers_those_of_one_kind_and_size_meet_in_the_order_of_their_step() -> None:
    size = np.tile(np.array([10, 20, 10]), 4)
    ranks = [without_numbers(rank, collective_bytes=size) for rank in range(3)]
    later = without_numbers(
        3, 2, collective_bytes=size[:6], step_number=np.array([2, 3]), collective_step=np.repeat([2, 3], 3)
    )
    found = matched(*ranks, later)
    early, late = [0, 1, 2], [0, 1, 2, 3]
    assert sorted(ranks for ranks, sizes in together(found) if sizes == {10}) == [early] * 4 + [late] * 4
    assert sorted(ranks for ranks, sizes in together(found) if sizes == {20}) == [early] * 2 + [late] * 2
    assert unmatched(found) == 0


def test_a_rank_without_numbers_makes_its_group_meet_by_order() -> None:
    found = matched(rank_columns(0), without_numbers(1))
    assert len(together(found)) == 12


def test_a_step_that_one_rank_recorded_in_part_is_left_out() -> None:
    cut = rank_columns(1)
    part = {name: column[:-1] for name, column in vars(cut).items() if name.startswith("collective_")}
    part["collective_sequence"] = np.full(11, -1)
    found = matched(without_numbers(0), rank_columns(1, **part))
    assert len(together(found)) == 9
    assert found.lost[0].startswith("in 1 step(s) ranks recorded different numbers of a collective")


@pytest.mark.parametrize("shift", [0, 3, 7])
def test_without_numbers_and_steps_lists_are_shifted_until_they_agree(shift: int) -> None:
    size = np.random.default_rng(0).permutation(12)
    none = np.full(12, -1)
    first = without_numbers(0, collective_bytes=size, collective_step=none)
    columns = {name: column[shift:] for name, column in vars(first).items() if name.startswith("collective_")}
    found = matched(first, rank_columns(1, **columns))
    assert together(found) == [([0, 1], {one}) for one in sorted(size[shift:].tolist())]


def test_lists_that_agree_in_several_places_are_not_matched() -> None:
    none = np.full(12, -1)
    first = without_numbers(0, collective_step=none)
    columns = {name: column[2:] for name, column in vars(first).items() if name.startswith("collective_")}
    found = matched(first, rank_columns(1, **columns))
    assert unmatched(found) == found.meeting.size
    assert "cannot be told" in found.lost[0]


def test_ranks_without_collectives_or_times_are_passed_over() -> None:
    unknown = rank_columns(2, collective_start_ns=np.full(12, -1))
    found = matched(rank_columns(0), rank_columns(1, collectives=0), unknown, rank_columns(3))
    assert {tuple(ranks) for ranks, _ in together(found)} == {(0, 3)}
    rows = CollectiveRows()
    rows.add(0, unknown)
    assert rows.match() is None


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 6).flatmap(
        lambda ranks: st.lists(
            st.lists(st.integers(0, 50 * MS), min_size=ranks, max_size=ranks), min_size=4, max_size=4
        )
    ),
    st.integers(1, 5 * MS),
    st.integers(-(10**15), 10**15),
)
def test_a_rank_waits_for_the_last_one_and_the_transfer_is_the_rest(
    late: list[list[int]], transfer: int, skew: int
) -> None:
    # Whatever the clocks show: the second rank's is apart.
    last = np.array([max(one) for one in late])
    ranks = []
    for rank in range(len(late[0])):
        at = np.arange(4) * 100 * MS + skew * (rank == 1) + 2 * 10**15
        arrived = at + np.array([one[rank] for one in late])
        times = {"collective_start_ns": arrived, "collective_end_ns": at + last + transfer}
        ranks.append(rank_columns(rank, 4, 1, **times))
    found = matched(*ranks)
    expected = np.array([[last[row] - late[row][rank] for rank in range(len(ranks))] for row in range(4)])
    assert found.waiting_ns.tolist() == expected.reshape(-1).tolist()
    assert set(found.transfer_ns.tolist()) == {transfer}


def test_no_rank_waits_while_its_kernels_compute_and_the_others_wait_for_a_transfer_beside_those_of_the_last() -> None:
    start, ms = np.arange(4) * 100 * MS, np.ones(4, np.int64) * MS
    last = {"collective_start_ns": start + 30 * MS, "collective_end_ns": start + 40 * MS}
    first = {"collective_start_ns": start, "collective_end_ns": start + 40 * MS}

    def waiting(busy: int, busy_of_last: int) -> list[int]:
        ranks = (
            rank_columns(0, 4, 1, collective_busy_ns=busy * ms, **first),
            rank_columns(1, 4, 1, collective_busy_ns=busy_of_last * ms, **last),
        )
        found = matched(*ranks)
        assert set(found.transfer_ns.tolist()) == {10 * MS}
        return found.waiting_ns.reshape(4, 2)[0].tolist()

    assert waiting(0, 0) == [30 * MS, 0]
    assert waiting(15, 0) == [15 * MS, 0]
    assert waiting(15, 10) == [25 * MS, 0]
    assert waiting(40, 10) == [0, 0]


def test_a_transfer_that_is_longer_than_the_usual_one_of_its_size_is_extra() -> None:
    start = np.arange(12) * 100 * MS
    took = np.where(np.arange(12) == 5, 9 * MS, 4 * MS)
    ranks = [rank_columns(rank, collective_start_ns=start, collective_end_ns=start + took) for rank in range(2)]
    assert matched(*ranks).extra_ns.tolist() == [0] * 10 + [5 * MS] * 2 + [0] * 12
