"""What was planted in generated jobs is found: who is late, why, how often, and what it costs."""

from __future__ import annotations

import pytest

from perfkit.ranks.diagnosing import RanksDiagnosis, diagnose_columns
from tests.ranks.judging_jobs import judge
from tests.ranks.planted_jobs import Plan, PlantedJob, damaged, planted_job, run_plan

ROWS = ("rows ddp", "rows blocking")
TRACES = ("trace blocking", "trace tensor")
ALL = (*ROWS, *TRACES)
HOST = tuple(range(8, 16))


def job(
    layout: str,
    cause: str | None = None,
    late: tuple[int, ...] | None = (5,),
    *,
    strength: float = 0.3,
    share: float = 1.0,
    ranks: int = 32,
    noise: str = "device",
    seed: int = 2,
) -> PlantedJob:
    steps = 60 if layout.startswith("rows") else 12
    return run_plan(
        Plan(
            seed=seed,
            layout=layout,
            ranks=ranks,
            per_host=8,
            steps=steps,
            step_ns=80e6,
            noise=noise,
            cause=cause,
            late=late if cause else (),
            strength=strength,
            share=share,
        )
    )


def diagnosis(job: PlantedJob) -> RanksDiagnosis:
    return diagnose_columns(job.ranks)


CASES = [
    *((layout, "data", (5,), 1.0) for layout in (*ALL, "trace ddp")),
    *((layout, "host", (5,), 1.0) for layout in ALL),
    *((layout, "kernels", (5,), 1.0) for layout in (*ALL, "trace ddp")),
    *((layout, "slow host", HOST, 1.0) for layout in ALL),
    *((layout, "last stage", tuple(range(16, 32)), 1.0) for layout in ("rows ddp", *TRACES)),
    *((layout, "last stage", tuple(range(24, 32)), 1.0) for layout in (*TRACES, "trace ddp")),
    *((layout, cause, (5,), 0.15) for layout in ROWS for cause in ("data", "host", "checkpoint", "gc")),
    *((layout, "work", (5,), 1.0) for layout in ROWS),
    *((layout, "sequences", None, 1.0) for layout in ROWS),
    *((layout, "gc of all", None, 0.01) for layout in ROWS),
    *((layout, "once", (5,), 0.0) for layout in ALL),
    ("trace tensor", "link", HOST, 1.0),
]


@pytest.mark.parametrize(("layout", "cause", "late", "share"), CASES)
def test_the_rank_and_the_cause_that_were_planted_are_found(
    layout: str, cause: str, late: tuple[int, ...] | None, share: float
) -> None:
    strength = 10.0 if cause == "once" else 0.3 / max(share, 0.15)
    planted = job(layout, cause, late, strength=strength, share=share)
    found = diagnosis(planted)
    judged = judge(planted, found)
    assert judged.right, found.findings
    assert judged.error is not None
    # Where buckets travel during the backward, what all devices idle for the host is taken for waiting too.
    assert -0.03 <= judged.error <= (0.03 if layout != "trace ddp" else 0.15)


@pytest.mark.parametrize(
    ("share", "cause", "shape"), [(1.0, "data", "persistent"), (0.2, "data", "recurrent"), (0.0, "once", "once")]
)
def test_a_rank_is_late_persistently_in_some_steps_or_once(share: float, cause: str, shape: str) -> None:
    found = diagnosis(job("rows ddp", cause, strength=20.0 if cause == "once" else 0.8, share=share)).findings[0]
    assert (found.ranks, found.shape) == ((5,), shape)
    assert abs(found.step_share - max(share, 1 / 60)) < 0.1


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("layout", ["rows ddp", "trace blocking"])
def test_few_ranks_are_enough(ranks: int, layout: str) -> None:
    found = diagnosis(job(layout, "kernels", (1,), ranks=ranks))
    assert found.findings[0].ranks == (1,)
    assert found.findings[0].cause == ("computing" if layout == "rows ddp" else "kernels")


@pytest.mark.parametrize("seed", range(0, 8, 2))
@pytest.mark.parametrize(
    ("layout", "noise"),
    [(layout, "device") for layout in (*ALL, "trace ddp")]
    + [(layout, noise) for layout in ROWS for noise in ("quiet", "busy")],
)
def test_no_rank_of_a_healthy_job_is_named(layout: str, noise: str, seed: int) -> None:
    healthy = job(layout, noise=noise, seed=seed, ranks=(4, 8, 32, 64)[seed // 2])
    found = diagnosis(healthy)
    assert found.findings == ()
    assert found.outcome == "healthy"


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_of_few_ranks_with_much_noise_none_is_named(ranks: int) -> None:
    for seed in range(0, 40, 2):
        assert diagnosis(job("rows ddp", noise="busy", seed=seed, ranks=ranks)).findings == ()


def test_ranks_that_were_cut_or_are_missing_do_not_hide_the_late_one() -> None:
    for seed in range(2, 12, 2):
        planted = damaged(job("rows ddp", "data", (5,), seed=seed))
        found = diagnosis(planted)
        assert judge(planted, found).right
        assert len(planted.ranks) < 32
        assert any("ranks are missing" in one for one in found.missing)


def test_seeds_make_the_same_job_each_time() -> None:
    one, other = planted_job(24), planted_job(24)
    assert one.plan == other.plan
    assert [rank.to_bytes() for rank in one.ranks] == [rank.to_bytes() for rank in other.ranks]
