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
    given |= {"compared": 20, "max_iter": 1, "max_eval": 20, "ended_by_max_eval": 0, "share": 1.0, "made_at": MADE}
    given |= facts
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


def test_steps_that_were_not_compared_take_nothing_of_it(build: Any) -> None:
    [finding] = found(build, again=10, compared=10)

    assert finding.cost_ns == 20 * MS


@pytest.mark.parametrize(("again", "count"), [(19, 1), (18, 0)])
def test_where_something_changes_between_some_steps_there_is_no_finding(build: Any, again: int, count: int) -> None:
    assert len(found(build, again=again)) == count


@pytest.mark.parametrize(
    ("facts", "max_eval"),
    [
        ({}, 60),
        ({"max_iter": 5, "calls": 20 * 11}, 44),
        ({"calls": 20}, 25),
        ({"max_eval": 200}, 200),
    ],
    ids=["as many as the iterations took", "of five iterations", "torch's default", "what it has"],
)
def test_the_evaluations_that_the_iterations_take_are_allowed(build: Any, facts: dict[str, Any], max_eval: int) -> None:
    [finding] = found(build, **facts)

    now = {"max_iter": 1, "max_eval": 20} | facts
    said = f"max_iter=20 (now {now['max_iter']}) and max_eval={max_eval} (now {now['max_eval']})"
    assert said in finding.advice


def test_line_searches_that_max_eval_has_ended_may_take_longer_with_more_of_it(build: Any) -> None:
    [half] = found(build, max_eval=1, ended_by_max_eval=10)
    [none] = found(build, max_eval=1, ended_by_max_eval=20)

    assert half.saving_low_ns == pytest.approx(0.5 * 0.9 * 0.95 * 40 * MS)
    assert (none.saving_low_ns, none.cost_ns) == (0, 40 * MS)


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
