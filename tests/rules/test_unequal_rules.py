"""Unequal work: one rank that all wait for, ranks that wait in turn, and padding that is computed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit.measures.results.steps import BatchTime, Ranks, RankSummary
from perfkit.rules.data import imbalanced_data
from perfkit.rules.ranks import slow_rank
from perfkit.run.records import LineRow, Lines, Phases, TracedLine

MS = 1_000_000


def summary(rank: int, forward: float, backward: float, share: float, **more: Any) -> RankSummary:
    line = LineRow(
        file="train.py", line=31, function="main", owner="user", phase="forward", samples=9, host_ns=1
    )  # fmt: skip
    phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
    own_ns = round(forward * MS)
    return RankSummary(rank=rank, own_ns=own_ns, phases_ns=phases, slowest_share=share, line=line, **more)


def ranks(*of: RankSummary, wall: float = 40, waiting: float = 5, follows: float | None = None) -> Ranks:
    return Ranks(steps=60, wall_ns=round(wall * MS), waiting_ns=round(waiting * MS), ranks=of, follows_size=follows)


def test_the_rank_that_all_wait_for_is_named_and_equal_work_gains_the_mean(build: Any) -> None:
    of = ranks(summary(0, 2, 36, 0.0), summary(1, 12, 24, 1.0))

    [finding] = slow_rank.check(build.measured(ranks=of))

    # Its forward is 5 ms longer than the mean's, and its backward takes twice its forward: a quarter of 10 ms, and
    # three quarters of it.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (7.5 * MS, 12.5 * MS)
    assert "All ranks wait for rank 1: its forward takes 5.0 ms longer" in finding.message
    assert finding.line == 31


@pytest.mark.parametrize(
    "of",
    [
        ranks(summary(0, 10, 26, 0.5), summary(1, 10.5, 26, 0.5)),
        ranks(summary(0, 10, 26, 0.1), summary(1, 10.4, 26, 0.9)),
        ranks(summary(0, 8, 26, 0.3), summary(1, 12, 26, 0.7)),
    ],
    ids=["in turn", "by next to nothing", "not always"],
)
def test_ranks_of_equal_work_are_left_alone(of: Ranks, build: Any) -> None:
    assert list(slow_rank.check(build.measured(ranks=of))) == []


def test_a_rank_that_is_slow_without_doing_more_shares_its_machine(build: Any) -> None:
    def at(*cpu_ms: float) -> list[Any]:
        first = summary(0, 4, 36, 0.0, cpu_ns=round(cpu_ms[0] * MS))
        second = summary(1, 12, 28, 1.0, cpu_ns=round(cpu_ms[1] * MS))
        return list(slow_rank.check(build.measured(ranks=ranks(first, second))))

    assert at(20, 20) == []
    assert len(at(10, 30)) == 1


def test_ranks_that_wait_in_turn_for_the_most_data_have_imbalanced_data(build: Any) -> None:
    of = ranks(summary(0, 10, 20, 0.5), summary(1, 10, 20, 0.5), waiting=6, follows=0.9)

    [finding] = imbalanced_data.check(build.measured(ranks=of))

    assert (finding.saving_low_ns, finding.saving_high_ns) == (3 * MS, 6 * MS)
    for follows in (None, 0.2):
        noise = msgspec.structs.replace(of, follows_size=follows)
        assert list(imbalanced_data.check(build.measured(ranks=noise))) == []


def batches(**more: Any) -> BatchTime:
    usual = {"padded_share": 0.5, "follows": 0.9, "ns_per_element": 20_000.0}
    return BatchTime(
        **{"steps": 60, "elements_per_step": 2_000.0, "spread": 0.3, "batches_looked_at": 20, **usual, **more}
    )


def test_padding_costs_its_elements(build: Any) -> None:
    step = build.step(60, data=1, forward=59)
    traced = TracedLine(
        file="train.py", line=12, function="collate", owner="user", phase="data", runs=1, host_ns=5
    )  # fmt: skip
    lines = Lines(period_ns=1, steps=60, traced=(traced,))

    [finding] = imbalanced_data.check(build.measured(step=step, batches=batches(), lines=lines))

    # 1,000 padded elements at 20 us.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (14 * MS, 23 * MS)
    assert (finding.file, finding.line) == ("train.py", 12)


@pytest.mark.parametrize(
    "healthy", [{"padded_share": 0.1}, {"padded_share": None}, {"follows": 0.2}, {"ns_per_element": 500.0}]
)
def test_batches_without_padding_that_costs_are_left_alone(healthy: dict[str, Any], build: Any) -> None:
    step = build.step(60, data=1, forward=59)

    assert list(imbalanced_data.check(build.measured(step=step, batches=batches(**healthy)))) == []
