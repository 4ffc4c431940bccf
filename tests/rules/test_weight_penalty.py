"""weight-penalty: the ops on tensors of the parameters' shapes in the line that sums up their squares."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import weight_penalty
from perfkit.run.records import Lines, Phase, WeightPenalty

MS = 1_000_000
PENALTY, MODEL = (
    Location(file="train.py", line=line, function=name, owner="user")
    for line, name in ((63, "loss_of"), (54, "forward"))
)


def op(name: str, shapes: str, ms: int, phase: Phase = "forward", at: Location = PENALTY) -> OpWorkTime:
    return OpWorkTime(op=f"aten::{name}", phase=phase, ns=ms * MS, calls=1, ops=1, shapes=shapes, at=at)


FORWARD = (op("pow", "256x9000", 6), op("sum", "256x9000", 2), op("log_softmax", "48x9000", 9))
BACKWARD = (
    op("pow", "256x9000", 6, "backward"),
    op("mul", "256x9000 256x9000", 6, "backward"),
    op("add_", "256x9000 256x9000", 4, "backward", MODEL),
    op("mm", "256x48 48x9000", 20, "backward", MODEL),
)


def found(build: Any, *rows: OpWorkTime) -> list[Any]:
    line = {"file": PENALTY.file, "line": PENALTY.line, "function": PENALTY.function, "owner": PENALTY.owner}
    penalty = WeightPenalty(**line, parameters=1, elements=256 * 9000, shapes=((256, 9000),))
    lines = Lines(period_ns=MS, steps=40, weight_penalties=(penalty,))
    work = StepWork(source="stacks-0", step_ns=80 * MS, rows=rows)
    return list(build.findings(weight_penalty, build.step(40, forward=20, backward=20), lines, work))


def test_the_squares_their_backward_and_the_addition_of_their_gradient_are_the_cost(build: Any) -> None:
    [finding] = found(build, *FORWARD, *BACKWARD)

    # 24 ms in a recorded step that is twice as long as an ordinary one.
    assert (finding.spent, finding.cost_ns) == (PENALTY, pytest.approx(12 * MS))
    assert finding.saving_low_ns == pytest.approx(0.7 * 12 * MS)
    assert finding.message.startswith("A penalty of the squares of 2,304,000 parameters is computed")


def test_squares_without_a_backward_are_only_reported_and_no_finding(build: Any) -> None:
    assert found(build, *FORWARD) == []
