"""repeated-closure: what evaluations that were known take of the step, and what larger steps leave out."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.rules.python import repeated_closure
from perfkit.run.records import Lines, RepeatedClosure

MS = 1_000_000
MADE = Location(file="train.py", line=10, function="LBFGS(...)", owner="user")


def found(build: Any, **facts: Any) -> list[Any]:
    given: dict[str, Any] = {"steps": 20, "again": 20, "calls": 50, "host_ns": 4 * MS, "of_ns": 10 * MS}
    given |= {"max_iter": 1, "share": 1.0, "made_at": MADE} | facts
    row = RepeatedClosure(file="train.py", line=30, function="main", owner="user", **given)
    lines = Lines(period_ns=MS, steps=40, repeated_closures=(row,))
    return list(build.findings(repeated_closure, build.step(100, forward=60, backward=30), lines, build.rank()))


def test_the_share_of_the_calls_is_the_cost_and_the_optimizer_is_to_be_edited(build: Any) -> None:
    [finding] = found(build)

    assert finding.cost_ns == 40 * MS
    assert finding.saving_low_ns == pytest.approx(0.9 * 0.95 * 40 * MS)
    assert (finding.spent.line, finding.change) == (30, MADE)
    assert "20 of 20 steps of LBFGS begin" in finding.message
    assert "one of 2.5 per step" in finding.message


def test_steps_that_begin_with_another_evaluation_take_nothing_of_it(build: Any) -> None:
    [finding] = found(build, again=10)

    assert finding.cost_ns == 20 * MS


def test_a_few_iterations_per_step_leave_less_to_save(build: Any) -> None:
    [finding] = found(build, max_iter=5, host_ns=2 * MS)

    assert finding.cost_ns == 20 * MS
    assert finding.saving_low_ns == pytest.approx(0.9 * 0.75 * 20 * MS)


@pytest.mark.parametrize(
    "facts",
    [
        {"max_iter": 20, "calls": 20 * 22, "host_ns": MS},
        {"max_iter": 10, "calls": 20 * 12, "host_ns": MS},
        {"share": 0.4},
        {"host_ns": MS // 3},
    ],
    ids=["twenty iterations", "ten of them", "steps of another optimizer", "a cheap closure"],
)
def test_what_saves_little_is_no_finding(build: Any, facts: dict[str, Any]) -> None:
    assert found(build, **facts) == []
