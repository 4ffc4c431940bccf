"""repeated-in-step: the share of the ops that compute what was there, at the line that repeats them."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.rules.python import repeated_in_step
from perfkit.run.records import Lines, RepeatedOps, TracedLine

MS = 1_000_000
KERNEL = Location(file="gp.py", line=30, function="Kernel.forward", owner="user")


def traced(line: int, function: str, runs: int, *callers: int) -> TracedLine:
    return TracedLine(
        file="gp.py", line=line, function=function, owner="user", phase="forward", runs=runs, host_ns=MS,
        callers=tuple(Location(file="gp.py", line=by, function="f") for by in callers),
    )  # fmt: skip


def found(build: Any, ms: float, *rows: TracedLine, most: int = 3, builds_graph: bool = True) -> list[Any]:
    repeated = RepeatedOps(
        file="gp.py", line=44, function="Process.covariance", owner="user", busiest=KERNEL, ops=37,
        host_ns=round(ms * MS), of_ns=50 * MS, most=most, builds_graph=builds_graph,
    )  # fmt: skip
    lines = Lines(period_ns=MS, steps=40, repeated_ops=(repeated,), traced=rows)
    return list(build.findings(repeated_in_step, build.step(40, forward=15, backward=20, optimizer=5), lines))


def test_the_share_of_repeated_ops_costs_that_of_the_forward_and_of_the_backward(build: Any) -> None:
    chain = (traced(30, "Kernel.forward", 3, 44), traced(44, "covariance", 3, 61), traced(61, "loss", 3, 61))

    [finding] = found(build, 20, *chain, traced(61, "loss", 1, 90))
    [without] = found(build, 20, builds_graph=False)

    assert (finding.spent, finding.change.line) == (KERNEL, 61)
    assert finding.cost_ns == pytest.approx(0.4 * 35 * MS)
    assert finding.message.startswith("37 ops below line 61 compute again what was computed before in the same step")
    # Without the step traced by line it is the line that leads to all of them.
    assert (without.change.line, without.cost_ns) == (44, pytest.approx(0.4 * 15 * MS))


def test_where_two_lines_call_a_function_the_second_one_repeats_it(build: Any) -> None:
    called = traced(30, "Kernel.forward", 2, 70, 71)

    [finding] = found(build, 20, called, traced(70, "loss", 1), traced(71, "loss", 1), most=2)

    assert finding.change.line == 71


def test_a_tenth_of_the_step_at_least_is_repeated(build: Any) -> None:
    assert found(build, 5) == []
