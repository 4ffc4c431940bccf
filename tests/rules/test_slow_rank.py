"""slow-rank: the rank that all others wait for is reported; ranks of equal work are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.measures.ranks.rank_times import measure_rank_times
from perfkit.measures.results.steps import Ranks, RankSummary
from perfkit.rules.ranks import slow_rank
from perfkit.run.records import RANK_SLICE, LineRow, Lines, Phase, Phases, Rank, Step, TracedLine, Waits

MS = 1_000_000


def summary(rank: int, forward: float, backward: float, share: float, **more: Any) -> RankSummary:
    """A rank whose waits are not known: its own work is its forward."""
    phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
    return of_rank(rank, share, own_ns=round(forward * MS), phases_ns=phases, **more)


def of_rank(rank: int, share: float, **more: Any) -> RankSummary:
    line = LineRow(
        file="train.py", line=31, function="main", owner="user", phase="forward", samples=9, host_ns=1
    )  # fmt: skip
    usual: dict[str, Any] = {"line": line, "late_steps": round(60 * share), "late_ns": 0}
    return RankSummary(rank=rank, caused_share=share, **(usual | more))


def ranks(*of: RankSummary) -> Ranks:
    return Ranks(steps=60, wall_ns=40 * MS, waiting_ns=5 * MS, ranks=of)


def waiting(late_ms: float, *of: RankSummary) -> Ranks:
    """Two ranks, of a step of 100 ms, whose waits are known: the second is late by so much."""
    waiting_ns = round(late_ms * MS / 2)
    return Ranks(
        steps=60, wall_ns=100 * MS, waiting_ns=waiting_ns, blocked_ns=waiting_ns + MS, transfer_ns=MS, ranks=of
    )


def pair(
    late: dict[str, Any],
    *,
    size: tuple[float, float] | None = None,
    without_core: tuple[float, float] = (0, 0),
    blocked: tuple[float, float] = (0, 0),
    **phases: tuple[float, float],
) -> Ranks:
    """Two ranks with these phases in ms without their waits; ``late`` are further facts of the second, the late one."""
    own = [sum(both[at] for both in phases.values()) for at in (0, 1)]
    of = [
        of_rank(
            at,
            float(at),
            own_ns=round(own[at] * MS),
            waited_ns=round((own[1] + 2 - own[at]) * MS),
            phases_ns=Phases(**{name: round(both[at] * MS) for name, both in phases.items()}),
            size_per_step=size[at] if size else None,
            gc_ns=0,
            thread_ns=round((own[at] - without_core[at] - blocked[at]) * MS),
            core_wait_ns=round(without_core[at] * MS),
            cpu_ns=round(own[at] * MS),
        )
        for at in (0, 1)
    ]
    of[1] = msgspec.structs.replace(of[1], **{"late_ns": round((own[1] - own[0]) * MS), **late})
    return waiting(own[1] - own[0], *of)


def sampled(phase: Phase, line: int, **more: Any) -> dict[Phase, LineRow]:
    usual = {"file": "train.py", "function": "main", "owner": "user", "samples": 10, "host_ns": 1}
    return {phase: LineRow(line=line, phase=phase, **(usual | more))}


#: The facts of the late rank, and the ranks' phases in ms -> what is said of it, and the advice.
CAUSES = [
    (
        {},
        {"data": (2, 42), "forward": (10, 10), "backward": (20, 20)},
        "it spends 40.0 ms more waiting for its data",
        "decoding",
    ),
    (
        {"gc_ns": 30 * MS},
        {"forward": (10, 25), "backward": (20, 35)},
        "garbage collections take 30.0 ms more of its step than of the others'",
        "gc.freeze",
    ),
    (
        {},
        {"without_core": (0, 25), "forward": (10, 25), "backward": (20, 35)},
        "its thread waits 25.0 ms longer for a core than the others'",
        "cores of its own",
    ),
    (
        {},
        {"size": (100, 200), "forward": (10, 20), "backward": (20, 40)},
        "its forward and backward take 30.0 ms longer than the others', with 2.0 times their amount of data",
        "tokens",
    ),
    (
        {},
        {"size": (100, 100), "forward": (10, 20), "backward": (20, 40)},
        "although its batches are not larger: a slower processor, or data that cost more",
        "clock",
    ),
    (
        {"cpu_ns": 30 * MS},
        {"size": (100, 100), "forward": (10, 20), "backward": (20, 40)},
        "its forward and backward take 30.0 ms longer than the others', without more processor time",
        "Remove the wait",
    ),
    (
        {"cpu_ns": 30 * MS},
        {"size": (100, 100), "without_core": (12, 24), "blocked": (0, 16), "forward": (10, 25), "backward": (20, 39)},
        "it has no core for 24.0 ms of the step, which may be all of it",
        "cores of its own",
    ),
    # What runs for longer waits longer for a core, where all do.
    (
        {},
        {"size": (100, 200), "without_core": (2, 30), "forward": (10, 20), "backward": (20, 40)},
        "its forward and backward take 30.0 ms longer than the others', with 2.0 times their amount of data",
        "tokens",
    ),
    (
        {},
        {"size": (100, 110), "without_core": (2, 30), "forward": (10, 20), "backward": (20, 40)},
        "its thread waits 27.9 ms longer for a core than the others'",
        "cores of its own",
    ),
    (
        {},
        {"without_core": (10, 30), "forward": (10, 10), "backward": (20, 20), "other": (1, 41)},
        "it spends 40.0 ms more outside the known phases than the others",
        "on all ranks alike",
    ),
    # The same time is not that of code as long as a core may be what it lacked: neither did it run that much longer,
    # nor was it blocked for it.
    (
        {},
        {"without_core": (10, 24), "blocked": (0, 14), "forward": (10, 10), "backward": (20, 50)},
        "its backward takes 30.0 ms longer than the others'; it has no core for 24.0 ms of the step",
        "cores of its own",
    ),
    (
        {},
        {"without_core": (20, 20), "forward": (10, 10), "backward": (20, 50)},
        "its backward takes 30.0 ms longer than the others', and its forward does not: code beside",
        "on all ranks alike",
    ),
    (
        {"lines": sampled("backward", 12, waiting={"": 9}, waits_for="time.sleep(0.03)")},
        {"without_core": (20, 20), "blocked": (0, 30), "forward": (10, 10), "backward": (20, 50)},
        "its thread waits there in time.sleep(0.03) at train.py:12",
        "Remove the wait",
    ),
    (
        {"lines": sampled("other", 44)},
        {"without_core": (10, 28), "blocked": (0, 18), "forward": (10, 10), "backward": (20, 20), "other": (1, 41)},
        "more outside the known phases than the others; it has no core for 28.0 ms of the step",
        "cores of its own",
    ),
    (
        {},
        {"forward": (10, 20), "backward": (20, 40)},
        "its forward and backward take 30.0 ms longer than the others'; the size of its data is not known",
        "prof.log(tokens=...)",
    ),
    (
        {"lines": sampled("backward", 12, waiting={"": 9}, waits_for="time.sleep(0.03)")},
        {"forward": (10, 10), "backward": (20, 50)},
        "its backward takes 30.0 ms longer than the others'; its thread waits there in time.sleep(0.03) at train.py:12",
        "Remove the wait",
    ),
    (
        {"lines": sampled("other", 44)},
        {"forward": (10, 10), "backward": (20, 20), "other": (1, 41)},
        "it spends 40.0 ms more outside the known phases than the others",
        "on all ranks alike",
    ),
    (
        {},
        {"forward": (10, 40), "backward": (20, 20)},
        "its forward takes 30.0 ms longer than the others', and its backward does not",
        "on all ranks alike",
    ),
    (
        {},
        {"data": (0, 10), "forward": (10, 15), "backward": (20, 22), "other": (0, 9), "logging": (0, 9)},
        "no phase alone makes it late (data 10.0 ms, logging 9.0 ms, other 9.0 ms)",
        "longest of these phases",
    ),
]


@pytest.mark.parametrize(("late", "phases", "reason", "advice"), CAUSES)
def test_the_rank_that_waits_least_is_named_with_what_makes_it_late(
    late: dict[str, Any], phases: dict[str, Any], reason: str, advice: str, build: Any
) -> None:
    [finding] = build.findings(slow_rank, pair(late, **phases))

    assert finding.message.startswith("Rank 1 comes last and the other rank waits for it, ")
    assert reason in finding.message
    assert advice in finding.advice


def test_a_core_is_what_a_rank_lacks_where_the_others_lack_one_after_each_collective_too(build: Any) -> None:
    def step(number: int, forward: float, backward: float, waited: float) -> Step:
        phases = Phases(forward=round(forward * MS), backward=round(backward * MS))
        waits = Waits(backward=round(waited * MS))
        wall_ns = round((forward + backward) * MS)
        return Step(step=number, start_ns=number, wall_ns=wall_ns, phases_ns=phases, waited_phases_ns=waits)

    def facts(rank: int, **more: Any) -> Rank:
        return Rank(rank=rank, launch_id="a", host="node", pid=1, start_ns=0, **more)

    # Rank 0 is done after 36 ms, of which it ran 10; when the collective is over it has no core again. While it
    # records, rank 1 waits for it, and for no core: of all its steps the share without one is smaller.
    first = [step(number, 12, 48, 24) for number in range(8, 60)]
    second = [step(number, 12, 988, 950) for number in range(8)] + [step(number, 12, 48, 8) for number in range(8, 60)]

    found = measure_rank_times(
        [
            (0, first, None, facts(0, core_wait_share=0.8, thread_ns_per_step=10 * MS)),
            (1, second, None, facts(1, core_wait_share=0.3, thread_ns_per_step=9 * MS)),
        ]
    )
    [finding] = build.findings(slow_rank, found)

    assert "its thread waits 17.0 ms longer for a core than the others'" in finding.message


def test_a_cause_of_one_rank_saves_up_to_all_of_its_delay_and_equal_work_no_more_than_the_mean_waits(
    build: Any,
) -> None:
    [data] = build.findings(slow_rank, pair({}, data=(2, 42)))
    [work] = build.findings(slow_rank, pair({}, size=(100, 200), forward=(10, 20), backward=(20, 50)))

    assert (data.saving_low_ns, data.saving_high_ns) == (20 * MS, 40 * MS)
    assert (work.saving_low_ns, work.saving_high_ns) == (15 * MS, 20 * MS)


def test_a_delay_below_5_percent_of_the_step_is_not_reported(build: Any) -> None:
    assert build.findings(slow_rank, pair({}, data=(2, 11))) == []
    assert len(build.findings(slow_rank, pair({}, data=(2, 13)))) == 1


def test_the_host_is_named_where_ranks_are_on_several(build: Any) -> None:
    of = pair({"host": "node7"}, data=(2, 42))
    on_two = msgspec.structs.replace(of, ranks=(msgspec.structs.replace(of.ranks[0], host="node6"), of.ranks[1]))

    [finding] = build.findings(slow_rank, on_two)

    assert finding.message.startswith("Rank 1 on node7 comes last")


def test_where_waits_are_not_known_equal_work_saves_the_difference_to_the_mean(build: Any) -> None:
    of = ranks(summary(0, 2, 36, 0.0), summary(1, 12, 24, 1.0))

    [finding] = build.findings(slow_rank, of)

    # Its forward is 5 ms longer than the mean's, and its backward takes twice its forward: a quarter of 10 ms, and
    # three quarters of it.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (7.5 * MS, 12.5 * MS)
    assert "its forward takes 10.0 ms longer than the others'" in finding.message
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
