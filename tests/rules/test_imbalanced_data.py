"""imbalanced-data: padding that is computed, and ranks that wait in turn for the one with the most data."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.results.steps import BatchTime, Ranks, RankSummary
from perfkit.rules.data import imbalanced_data
from perfkit.run.records import RANK_SLICE, CallPaths, LineRow, Lines, Phases, TracedLine

MS = 1_000_000


def summary(rank: int, forward_ms: int, share: float) -> RankSummary:
    line = LineRow(file="train.py", line=31, function="main", phase="forward", samples=9, host_ns=1)
    phases = Phases(forward=forward_ms * MS, backward=20 * MS)
    late = round(60 * share)
    return RankSummary(
        rank=rank,
        own_ns=forward_ms * MS,
        phases_ns=phases,
        caused_share=share,
        late_steps=late,
        late_ns=0,
        line=line,
    )


def test_ranks_that_wait_in_turn_for_the_most_data_have_imbalanced_data(build: Any) -> None:
    ranks = Ranks(
        steps=60,
        wall_ns=40 * MS,
        waiting_ns=6 * MS,
        ranks=(summary(0, 10, 0.5), summary(1, 10, 0.5)),
        follows_size=0.9,
    )

    [finding] = build.findings(imbalanced_data, ranks)

    assert (finding.saving_low_ns, finding.saving_high_ns) == (3 * MS, 6 * MS)
    assert finding.spent.line == 31
    for follows in (None, 0.2):
        noise = msgspec.structs.replace(ranks, follows_size=follows)
        assert build.findings(imbalanced_data, noise) == []


def test_ranks_that_wait_in_turn_do_so_in_the_backward_and_their_part_of_the_data_is_changed(build: Any) -> None:
    ranks = Ranks(
        steps=60,
        wall_ns=40 * MS,
        waiting_ns=6 * MS,
        ranks=(summary(0, 10, 0.5), summary(1, 10, 0.5)),
        follows_size=0.9,
    )
    part = Location(file="train.py", line=8, function="rows[rank::ranks]")
    backward = LineRow(
        file="train.py", line=34, function="main", owner="user", phase="backward", samples=90, host_ns=MS
    )

    [finding] = build.findings(
        imbalanced_data,
        ranks,
        build.rank(calls={RANK_SLICE: (part,)}),
        Lines(period_ns=10 * MS, steps=60, rows=(backward,)),
    )

    assert (finding.spent, finding.change) == (backward.at, part)


def test_a_rank_that_is_always_the_slowest_is_left_to_slow_rank(build: Any) -> None:
    ranks = Ranks(
        steps=60,
        wall_ns=40 * MS,
        waiting_ns=6 * MS,
        ranks=(summary(0, 10, 0.1), summary(1, 20, 0.9)),
        follows_size=0.9,
    )

    assert build.findings(imbalanced_data, ranks) == []


def batches(**fields: Any) -> BatchTime:
    usual = {"padded_share": 0.5, "follows": 0.9, "ns_per_element": 20_000.0}
    return BatchTime(
        **{"steps": 60, "elements_per_step": 2_000.0, "spread": 0.3, "batches_inspected": 20, **usual, **fields}
    )


def test_padding_costs_the_time_of_its_elements(build: Any) -> None:
    traced = TracedLine(file="train.py", line=12, function="collate", phase="data", runs=1, host_ns=5)
    lines = Lines(period_ns=1, steps=60, traced=(traced,))

    [finding] = build.findings(imbalanced_data, build.step(60, data=1, forward=59), batches(), lines)

    # 1,000 padded elements at 20 us.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (14 * MS, 23 * MS)
    assert (finding.spent.file, finding.spent.line) == ("train.py", 12)


@pytest.mark.parametrize(
    "healthy", [{"padded_share": 0.1}, {"padded_share": None}, {"follows": 0.2}, {"ns_per_element": 500.0}]
)
def test_batches_without_padding_that_costs_are_not_reported(healthy: dict[str, Any], build: Any) -> None:
    assert build.findings(imbalanced_data, build.step(60, data=1, forward=59), batches(**healthy)) == []


def test_texts_that_the_model_writes_itself_are_for_information(build: Any) -> None:
    def found(function: str) -> Any:
        frames = (Location(file="transformers", line=None, function=function),)
        paths = CallPaths(frames=frames, frame=(0,), parent=(-1,), phase=("other",), samples=(9,))
        return build.findings(imbalanced_data, build.step(20), batches(), Lines(period_ns=MS, steps=40, paths=paths))

    assert [one.severity for one in found("GenerationMixin.generate")] == ["info"]
    assert [one.severity for one in found("Trainer.train")] == ["critical"]
