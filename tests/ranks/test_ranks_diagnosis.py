"""A diagnosis of ranks: what it says where it cannot tell, as JSON, and whatever the order in which ranks are read."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.errors import RunError
from perfkit.ranks.diagnosing import RanksDiagnosis, diagnose_columns, late_sentence
from perfkit.ranks.rank_columns import RankColumns
from tests.ranks.build import MS, rank_columns
from tests.ranks.planted_jobs import Plan, PlantedJob, damaged, run_plan


def planted(layout: str, cause: str = "data", seed: int = 2, ranks: int = 8) -> PlantedJob:
    steps = 40 if layout.startswith("rows") else 10
    return run_plan(
        Plan(
            seed=seed,
            layout=layout,
            ranks=ranks,
            per_host=4,
            steps=steps,
            step_ns=80e6,
            noise="device",
            cause=cause,
            late=(3,),
            strength=0.4,
        )
    )


def without_waiting(rank: RankColumns) -> RankColumns:
    return replace(rank, waited_ns=np.full(len(rank), -1))


@pytest.mark.parametrize("layout", ["rows ddp", "trace tensor"])
def test_a_diagnosis_comes_back_from_its_json(layout: str) -> None:
    found = diagnose_columns(planted(layout).ranks, "somewhere")
    assert found.findings
    assert RanksDiagnosis.from_json(found.to_json()) == found


@pytest.mark.parametrize("seed", range(5))
def test_collectives_beside_kernels_do_not_make_the_slowdown_longer_than_it_is(seed: int) -> None:
    job = planted("trace ddp", "host", seed)

    [found] = diagnose_columns(job.ranks).findings

    assert job.slowdown > 1.3
    assert found.slowdown == pytest.approx(job.slowdown, rel=0.03)


def test_a_diagnosis_of_another_version_is_refused() -> None:
    text = diagnose_columns(planted("rows ddp").ranks).to_json().replace('"schema": 1', '"schema": 99')
    with pytest.raises(RunError, match="99"):
        RanksDiagnosis.from_json(text)


@pytest.mark.parametrize("layout", ["rows blocking", "trace tensor", "trace ddp"])
@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_in_which_ranks_are_read_does_not_matter(layout: str, seed: int) -> None:
    ranks = damaged(planted(layout, ranks=16)).ranks
    shuffled = [ranks[row] for row in np.random.default_rng(seed).permutation(len(ranks))]
    assert diagnose_columns(shuffled) == diagnose_columns(ranks)


def test_one_rank_is_in_memory_at_a_time() -> None:
    ranks = [rank.to_bytes() for rank in planted("trace tensor").ranks]
    alive: list[weakref.ref[RankColumns]] = []

    def each() -> Iterator[RankColumns]:
        for data in ranks:
            assert sum(one() is not None for one in alive) <= 1
            columns = RankColumns.from_bytes(data)
            alive.append(weakref.ref(columns))
            yield columns
            del columns

    assert diagnose_columns(each()).findings[0].ranks == (3,)
    assert len(alive) == 8


def test_of_the_columns_in_the_file_nothing_is_lost_for_the_diagnosis() -> None:
    ranks = planted("rows ddp").ranks
    assert diagnose_columns(map(RankColumns.from_bytes, map(RankColumns.to_bytes, ranks))) == diagnose_columns(ranks)


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([], "at least two ranks are needed, and 0 could be read"),
        (planted("rows ddp").ranks[:1], "at least two ranks are needed, and 1 could be read"),
        ([rank_columns(rank, 0, 0) for rank in range(2)], "no steps are marked"),
        ([rank_columns(rank, 4, 0, step_number=np.arange(4) + 10 * rank) for rank in range(2)], "the same steps"),
    ],
)
def test_what_cannot_be_compared_has_its_reason(ranks: list[RankColumns], reason: str) -> None:
    found = diagnose_columns(ranks, "folder", ("rank 7 was left out: it is cut",))
    assert found.outcome == "cannot-tell"
    assert reason in found.verdict
    assert "rank 7 was left out: it is cut" in found.missing
    assert RanksDiagnosis.from_json(found.to_json()) == found


def test_phases_without_waiting_tell_who_waits_for_its_data_but_not_who_computes_longer() -> None:
    data = diagnose_columns([without_waiting(rank) for rank in planted("rows ddp", "data").ranks])
    assert (data.measured_by, data.findings[0].ranks, data.findings[0].cause) == ("phases", (3,), "data")
    slow = planted("rows ddp", "kernels").ranks
    healthy = [replace(rank, phases_ns=np.tile(slow[0].phases_ns[:1], (40, 1))) for rank in slow]
    found = diagnose_columns([without_waiting(rank) for rank in healthy])
    assert found.outcome == "cannot-tell"
    assert "backward" in found.verdict


def test_all_may_wait_for_a_rank_that_is_missing() -> None:
    found = diagnose_columns([rank for rank in planted("rows ddp").ranks if rank.rank != 3])
    assert found.outcome == "cannot-tell"
    assert "one of the 1 that could not be" in found.verdict


def test_all_may_wait_for_a_rank_whose_recording_was_cut_before_its_first_step() -> None:
    ranks = planted("rows ddp").ranks
    columns = {name: column[:0] for name, column in vars(ranks[3]).items() if isinstance(column, np.ndarray)}
    found = diagnose_columns([*ranks[:3], replace(ranks[3], **columns), *ranks[4:]])
    assert found.outcome == "cannot-tell"
    assert "one of the 1 that could not be" in found.verdict


def test_ranks_with_fewer_steps_are_compared_in_those_that_they_have() -> None:
    ranks = planted("rows ddp").ranks
    short = replace(
        ranks[0],
        **{
            name: getattr(ranks[0], name)[5:20]
            for name in vars(ranks[0])
            if isinstance(getattr(ranks[0], name), np.ndarray) and len(getattr(ranks[0], name)) == 40
        },
    )
    found = diagnose_columns([short, *ranks[1:]])
    assert found.findings[0].ranks == (3,)
    assert found.steps == 40
    assert any("rank(s) 0 do not have all of them" in one for one in found.missing)


def test_waiting_is_what_other_ranks_lose_by_the_late_one() -> None:
    found = diagnose_columns(planted("rows ddp").ranks)
    late, others = found.ranks[3], [one for one in found.ranks if one.rank != 3]
    assert late.last_share > 0.9
    assert late.waiting_ns is not None
    assert late.waiting_ns < 2 * MS < 20 * MS < min(one.waiting_ns or 0 for one in others)
    assert found.verdict.startswith("Rank 3 (node0) waits for its data in most steps. It costs ")
    assert late_sentence(found.findings[0]) in found.verdict
    assert repr(found) == f"<diagnosis of 8 rank(s) of : {found.verdict}>"


def test_clocks_of_hosts_are_in_the_diagnosis_of_traces() -> None:
    found = diagnose_columns(planted("trace blocking").ranks)
    assert [clock.host for clock in found.clocks] == ["node0", "node1"]
    assert max(clock.residual_ns for clock in found.clocks) < 50_000
    assert diagnose_columns(planted("rows ddp").ranks).clocks == ()
