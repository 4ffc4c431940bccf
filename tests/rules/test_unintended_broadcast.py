"""unintended-broadcast: the ops on what a column against a row makes, at the line where the two meet."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import unintended_broadcast
from perfkit.run.records import Lines, Phase, WideBroadcast

MS = 1_000_000
MEET, NEXT, OTHER = (
    Location(file="train.py", line=line, function=name, owner="user")
    for line, name in ((28, "loss"), (29, "loss"), (40, "attention"))
)
LINES = Lines(
    period_ns=MS,
    steps=40,
    wide_broadcasts=(
        WideBroadcast(
            file="train.py", line=28, function="loss", owner="user", op="aten::sub", calls=3, one=(1024, 1),
            other=(1024,), wide=(1024, 1024),
        ),
    ),
)  # fmt: skip


def op(name: str, shapes: str, ms: int, at: Location, phase: Phase = "forward") -> OpWorkTime:
    return OpWorkTime(op=f"aten::{name}", phase=phase, ns=ms * MS, calls=1, ops=1, shapes=shapes, at=at)


WORK = StepWork(
    source="stacks-0",
    step_ns=80 * MS,
    rows=(
        op("sub", "1024x1 1024", 5, MEET),
        op("mul", "1024x1024", 4, NEXT),
        op("maximum", "1024x1024 1024x1024", 8, NEXT),
        op("where", "1024x1024 1024x1024", 13, NEXT, "backward"),
        op("softmax", "1024x1024", 9, OTHER),
        op("select", "1024x3", 1, MEET),
    ),
)


def test_all_ops_on_the_pairs_are_the_cost_and_the_line_where_they_meet_is_to_be_edited(build: Any) -> None:
    [finding] = build.findings(unintended_broadcast, build.step(40, forward=20, backward=20), LINES, WORK)

    assert (finding.spent, finding.change) == (NEXT, MEET)
    # 30 ms in a recorded step that is twice as long as an ordinary one.
    assert finding.cost_ns == pytest.approx(15 * MS)
    assert finding.saving_low_ns == pytest.approx(0.7 * 15 * MS)
    assert finding.message.startswith(
        "aten::sub of the shapes (1024, 1) and (1024,) makes (1024, 1024): each element is"
    )


def test_a_cheap_one_and_a_run_without_shapes_are_not_reported(build: Any) -> None:
    long = build.step(2000, forward=1000, backward=1000)

    assert not build.findings(
        unintended_broadcast, long, LINES, StepWork(source="x", step_ns=4000 * MS, rows=WORK.rows)
    )
    assert not build.findings(unintended_broadcast, build.step(40, forward=20), LINES)
    assert not build.findings(unintended_broadcast, build.step(40, forward=20), Lines(period_ns=MS, steps=40), WORK)
