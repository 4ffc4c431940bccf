"""rollout-with-graph: the backward goes through one small graph for each move of an episode."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.measures.results.work import OpShares, OpWorkTime, StepWork
from perfkit.rules.python import rollout_with_graph
from perfkit.run.records import GradientCalls, LineRow, Lines, ModuleCalls, TracedLine

MS = 1_000_000


def traced(line: int, function: str, **fields: Any) -> TracedLine:
    return TracedLine(
        file="play.py", line=line, function=function, owner="user", phase="other", runs=50, host_ns=10 * MS, **fields
    )


def sampled(line: int, ms: float, function: str = "act") -> LineRow:
    return LineRow(
        file="play.py", line=line, function=function, owner="user", phase="other", samples=99, host_ns=round(ms * MS)
    )


def op(line: int, ms: float, calls: int = 500, function: str = "act") -> OpWorkTime:
    at = Location(file="play.py", line=line, function=function, owner="user")
    return OpWorkTime(op="AddmmBackward0", phase="backward", ns=round(ms * MS), calls=calls, ops=calls, at=at)


#: Line 20 asks the policy, whose layer is at line 10; at line 22 is log_prob, at line 30 the backward.
MOVES = ModuleCalls(module="Policy", calls=50, host_ns=10 * MS, rolls_out=True)
LAYER = traced(10, "Policy.forward", callers=(Location(file="play.py", line=20, function="act", owner="user"),))
LEARNS = traced(30, "learn", gradients=GradientCalls(calls=1, host_ns=30 * MS))
SAMPLES = (
    sampled(10, 20, "Policy.forward"),
    sampled(20, 2),
    sampled(22, 20),
    sampled(25, 18),
    sampled(30, 40, "learn"),
)


def found(
    build: Any, moves: ModuleCalls = MOVES, *facts: Any, backward: tuple[OpWorkTime, ...] = (op(10, 20), op(22, 10))
) -> list[Finding]:
    lines = Lines(period_ns=MS, steps=40, rows=SAMPLES, traced=(traced(20, "act", modules=(moves,)), LAYER, LEARNS))
    work = StepWork(source="stacks-0", step_ns=100 * MS, rows=backward)
    step = build.step(100, forward=60, backward=40)
    return list(build.findings(rollout_with_graph, step, lines, work, OpShares(shares={"backward": 0.8}), *facts))


def test_the_backward_and_half_of_the_forward_that_it_goes_through_are_the_cost(build: Any) -> None:
    [finding] = found(build)

    assert finding.cost_ns == 60 * MS  # 40 of the backward, half of 20 of the layer and 20 of log_prob
    assert finding.saving_low_ns == pytest.approx(0.98 * (36 + 16) * MS)
    assert finding.saving_high_ns == pytest.approx(1.15 * (40 + 24) * MS)
    assert "Policy is called 50 times per step with one row and a graph each" in finding.message
    assert "no_grad" in finding.advice


def test_the_time_is_in_the_backward_and_the_call_of_the_model_is_the_line_to_change(build: Any) -> None:
    [finding] = found(build)

    assert finding.spent is not None
    assert finding.change is not None
    assert (finding.spent.line, finding.change.line) == (30, 20)


def test_long_ops_of_the_backward_are_not_counted_on(build: Any) -> None:
    [finding] = found(build, backward=(op(10, 30, calls=50), op(22, 10)))

    assert finding.saving_low_ns is not None
    assert finding.saving_low_ns < 0.6 * (36 + 16) * MS


def test_other_loops_over_a_model_and_a_device_that_is_busy_are_not_reported(build: Any) -> None:
    assert not found(build, ModuleCalls(module="Policy", calls=50, host_ns=10 * MS))
    assert not found(build, ModuleCalls(module="Policy", calls=50, host_ns=10 * MS, rolls_out=True, sliced=True))
    assert not found(build, MOVES, build.device(1000, compute=900, causes={"python": 100}))
