"""Clocks of hosts are aligned by what ends on all ranks together, and what is left is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.ranks.clocks import AlignedClocks, align_clocks
from perfkit.ranks.collectives import CollectiveRows
from perfkit.ranks.rank_columns import RankColumns
from tests.ranks.build import MS, rank_columns

HOUR = 3600 * 10**9
STEPS = 60
#: When the collectives truly end.
ENDS = 1_760_000_000 * 10**9 + np.arange(STEPS) * 100 * MS


def on_clock(times: np.ndarray, offset: float, ppm: float) -> np.ndarray:
    return times + np.rint(offset + ppm * 1e-6 * (times - ENDS[0])).astype(np.int64)


def rank_on(
    rank: int, offset: float, ppm: float, *, groups: Sequence[str] = ("all",), ends: np.ndarray = ENDS
) -> RankColumns:
    """A rank of these groups, in turns, whose clock is ahead by ``offset`` at the first end and gains ``ppm``."""
    end = on_clock(ends, offset, ppm)
    group = np.arange(end.size) % len(groups)
    columns = {"collective_arrive_ns": end - 2 * MS, "collective_start_ns": end - MS, "collective_end_ns": end}
    return rank_columns(
        rank, end.size, 1, group_names=tuple(groups), collective_group=group.astype(np.int32), **columns
    )


def aligned(*ranks: RankColumns) -> AlignedClocks:
    rows = CollectiveRows()
    for position, rank in enumerate(ranks):
        rows.add(position, rank)
    found = rows.match()
    assert found is not None
    return align_clocks(found, len(ranks))


def off_by(clocks: AlignedClocks, position: int, offset: float, ppm: float) -> int:
    """How far the rank's times are from the reference's (rank 0, whose clock is true) over the recording, at most."""
    return int(np.abs(clocks.on_reference(position, on_clock(ENDS, offset, ppm)) - ENDS).max())


@settings(max_examples=60, deadline=None)
@given(st.floats(-HOUR, HOUR), st.floats(-50, 50), st.integers(0, 2**32))
def test_an_offset_of_up_to_an_hour_and_a_drift_are_found(offset: float, ppm: float, seed: int) -> None:
    jitter = np.random.default_rng(seed).normal(0, 6000, STEPS).astype(np.int64)
    clocks = aligned(rank_on(0, 0, 0), rank_on(1, offset, ppm, ends=ENDS + jitter))
    assert off_by(clocks, 1, offset, ppm) < 30_000
    assert 1_000 < clocks.residual_ns[1] < 20_000
    assert clocks.aligned.all()


def test_a_quarter_of_the_ends_may_be_anything() -> None:
    draw = np.random.default_rng(0)
    wrong = ENDS + np.where(np.arange(STEPS) % 5 == 0, draw.integers(-HOUR, HOUR, STEPS), 0)
    clocks = aligned(rank_on(0, 0, 0), rank_on(1, 5e9, 20, ends=wrong))
    assert off_by(clocks, 1, 5e9, 20) < 1_000


def test_ranks_that_meet_the_reference_nowhere_are_reached_through_others() -> None:
    planted = [(0.0, 0.0), (7e9, 10.0), (-3e12, -40.0), (1e12, 0.0)]
    groups = [("a",), ("a", "b"), ("c", "b"), ("c",)]
    ranks = [rank_on(rank, *clock, groups=groups[rank]) for rank, clock in enumerate(planted)]
    clocks = aligned(*ranks)
    ends = [clocks.on_reference(rank, on_clock(ENDS, *clock)) for rank, clock in enumerate(planted)]
    assert int(np.ptp(ends, axis=0).max()) < 10_000


def test_a_rank_with_few_ends_or_with_none_in_common_is_not_aligned() -> None:
    clocks = aligned(rank_on(0, 0, 0), rank_on(1, 0, 0, ends=ENDS[:3]), rank_on(2, 0, 0, groups=("x",)))
    assert clocks.aligned.tolist() == [True, False, False]


def test_ends_that_do_not_agree_leave_a_residual_that_is_not_aligned() -> None:
    jitter = np.random.default_rng(0).integers(-5 * MS, 5 * MS, STEPS)
    clocks = aligned(rank_on(0, 0, 0), rank_on(1, 0, 0, ends=ENDS + jitter))
    assert not clocks.aligned[1]


def test_a_host_has_the_offset_and_the_drift_of_its_ranks() -> None:
    clocks = aligned(rank_on(0, 0, 0), rank_on(1, 0, 0), rank_on(2, 3e9, 30), rank_on(3, 3e9, 30))
    first, second = clocks.by_host(["a", "a", "b", "b"])
    assert (first.host, first.ranks, first.offset_ns, first.drift_ppm) == ("a", 2, 0, 0.0)
    assert (second.host, second.ranks) == ("b", 2)
    assert abs(second.offset_ns + 3e9) < MS  # its clock is ahead
    assert abs(second.drift_ppm + 30) < 0.1
