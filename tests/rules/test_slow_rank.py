"""slow-rank: the rank that all others wait for is reported; ranks of equal work are not."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.rules.ranks import slow_rank
from perfkit.run.records import RANK_SLICE, LineRow, Lines, Phases, TracedLine

MS = 1_000_000


def summary(rank: int, forward: float, backward: float, share: float, **more: Any) -> RankSummary:
    line = LineRow(
        file="train.py", line=31, function="main", owner="user", phase="forward", samples=9, host_ns=1
    )  # fmt: skip
    phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
    own_ns = round(forward * MS)
    return RankSummary(rank=rank, own_ns=own_ns, phases_ns=phases, slowest_share=share, line=line, **more)


def ranks(*of: RankSummary) -> Ranks:
    return Ranks(steps=60, wall_ns=40 * MS, waiting_ns=5 * MS, ranks=of)


def test_the_rank_that_all_wait_for_is_reported_and_equal_work_saves_the_difference_to_the_mean(build: Any) -> None:
    of = ranks(summary(0, 2, 36, 0.0), summary(1, 12, 24, 1.0))

    [finding] = build.findings(slow_rank, of)

    # Its forward is 5 ms longer than the mean's, and its backward takes twice its forward: a quarter of 10 ms, and
    # three quarters of it.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (7.5 * MS, 12.5 * MS)
    assert "All ranks wait for rank 1: its forward takes 5.0 ms longer" in finding.message
    assert finding.spent.line == 31


@pytest.mark.parametrize(
    "of",
    [
        ranks(summary(0, 10, 26, 0.5), summary(1, 10.5, 26, 0.5)),
        ranks(summary(0, 10, 26, 0.1), summary(1, 10.4, 26, 0.9)),
        ranks(summary(0, 8, 26, 0.3), summary(1, 12, 26, 0.7)),
    ],
    ids=["in turn", "by little", "not always"],
)
def test_ranks_of_equal_work_are_not_reported(of: Ranks, build: Any) -> None:
    assert build.findings(slow_rank, of) == []


def test_a_rank_that_is_slow_without_more_work_is_not_reported(build: Any) -> None:
    def at(*cpu_ms: float) -> list[Any]:
        first = summary(0, 4, 36, 0.0, cpu_ns=round(cpu_ms[0] * MS))
        second = summary(1, 12, 28, 1.0, cpu_ns=round(cpu_ms[1] * MS))
        return build.findings(slow_rank, ranks(first, second))

    assert at(20, 20) == []
    assert len(at(10, 30)) == 1


def test_the_line_to_change_decides_what_the_rank_trains_on(build: Any) -> None:
    of = ranks(summary(0, 2, 36, 0.0), summary(1, 12, 24, 1.0))
    part = Location(file="train.py", line=8, function="rows[rank::ranks]")

    def traced(line: int, before_model: bool, host_ns: int) -> TracedLine:
        return TracedLine(
            file="train.py", line=line, function="main", owner="user", phase="other", runs=1, host_ns=host_ns,
            loop_line=29, before_model=before_model,
        )  # fmt: skip

    backward = LineRow(
        file="train.py", line=34, function="main", owner="user", phase="backward", samples=90, host_ns=MS
    )
    lines = Lines(
        period_ns=10 * MS,
        steps=60,
        rows=(backward,),
        traced=(traced(29, True, 9 * MS), traced(30, True, 3 * MS), traced(32, False, 7 * MS)),
    )

    def change(*more: Any, **facts: Any) -> Any:
        [finding] = build.findings(slow_rank, of, build.rank(loaders=(), **facts), *more)
        return finding.change

    assert change(lines, calls={RANK_SLICE: (part,)}) == part
    assert change(lines).line == 30
    assert change() is None
