"""ignored-targets: the scores of all classes where the loss ignores the target."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit._location import Location
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.ops import ignored_targets
from perfkit.run.records import IgnoredTargets, Lines, Phase

MS = 1_000_000
HEAD, LOSS = (Location(file="train.py", line=line, function=name) for line, name in ((28, "scores"), (40, "f")))


def lines(ignored: int) -> Lines:
    loss = IgnoredTargets(
        file="train.py", line=40, function="f", owner="user", targets=800, ignored=ignored, classes=3000
    )
    return Lines(period_ns=MS, steps=40, ignored_targets=(loss,))


def op(name: str, shapes: str, ms: int, at: Location, phase: Phase = "forward") -> OpWorkTime:
    return OpWorkTime(op=f"aten::{name}", phase=phase, ns=ms * MS, calls=1, ops=1, shapes=shapes, at=at)


#: 20 ms in ops on all scores, 12 in others, in a recorded step that is twice as long as an ordinary one.
WORK = StepWork(
    source="stacks-0",
    step_ns=80 * MS,
    rows=(
        op("addmm", "3000 800x96 96x3000", 6, HEAD),
        op("mm", "3000x800 800x96", 5, HEAD, "backward"),
        op("mm", "800x3000 3000x96", 4, HEAD, "backward"),
        op("_log_softmax", "800x3000", 3, LOSS),
        op("nll_loss_backward", "800x3000 800", 2, LOSS, "backward"),
        op("addmm", "384 800x96 96x384", 8, HEAD),
        op("mm", "96x3000 3000x7", 4, HEAD),
    ),
)


def test_the_share_of_the_ops_on_all_scores_is_the_cost_and_the_loss_is_the_line_to_change(build: Any) -> None:
    [finding] = build.findings(ignored_targets, build.step(40, forward=20, backward=20), lines(600), WORK)

    assert (finding.spent.line, finding.change.line) == (28, 40)
    assert finding.cost_ns == pytest.approx(0.75 * 10 * MS)
    assert finding.saving_low_ns == pytest.approx(0.75 * finding.cost_ns)
    assert finding.message.startswith("The loss ignores 75% of its 800 targets, and the scores of 3,000 classes are")


def test_the_line_to_change_is_the_one_that_computes_scores_where_it_is_beside_the_loss(build: Any) -> None:
    beside = Location(file="train.py", line=38, function="f")
    rows = (op("addmm", "3000 800x96 96x3000", 20, beside), op("_log_softmax", "800x3000", 3, LOSS))
    work = StepWork(source="x", step_ns=40 * MS, rows=rows)

    [finding] = build.findings(ignored_targets, build.step(40, forward=40), lines(600), work)

    assert (finding.spent.line, finding.change) == (38, None)


def test_scores_of_a_batch_of_sequences_are_found_by_the_number_of_their_positions(build: Any) -> None:
    rows = (op("linear", "16x50x96 3000x96 3000", 20, HEAD),)

    [finding] = build.findings(
        ignored_targets, build.step(40, forward=40), lines(600), StepWork(source="x", step_ns=40 * MS, rows=rows)
    )

    assert finding.cost_ns == pytest.approx(15 * MS)


def test_few_ignored_targets_cheap_scores_and_missing_measures_are_not_reported(build: Any) -> None:
    step = build.step(40, forward=20, backward=20)

    assert not build.findings(ignored_targets, step, lines(190), WORK)
    assert not build.findings(
        ignored_targets,
        build.step(400, forward=400),
        lines(600),
        StepWork(source="x", step_ns=4000 * MS, rows=WORK.rows),
    )
    assert not build.findings(ignored_targets, step, Lines(period_ns=MS, steps=40), WORK)
    assert not build.findings(ignored_targets, step, lines(600))
