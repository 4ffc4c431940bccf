"""compute-bound: a step near the limit of arithmetic is healthy."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.measures.results.loop import LoopPart, LoopTime
from perfkit.measures.results.work import OpWorkTime, StepWork
from perfkit.rules.verdicts import compute_bound, memory_bound, unexplained
from perfkit.run.records import LineRow, Lines, Rate, TracedLine
from tests.made_limits import made_limits


def test_a_step_near_the_limit_of_arithmetic_is_compute_bound(build: Any) -> None:
    ledger = build.ledger(("computing", 90, 72, "arithmetic"), ("python", 10, None, None))

    [finding] = build.findings(compute_bound, ledger)

    assert finding.message == (
        "90% of the 100 ms step runs at 80% of the compute limit (measured on a CPU); 10% is unexplained."
    )
    assert finding.cost_ns is None
    assert build.findings(memory_bound, ledger) == build.findings(unexplained, ledger) == []


def test_a_step_far_from_its_limit_is_not_compute_bound(build: Any) -> None:
    assert build.findings(compute_bound, build.ledger(("computing", 100, 20, "arithmetic"))) == []


def test_a_loop_that_does_other_work_in_a_rhythm_is_not_proven_healthy_by_its_typical_step(build: Any) -> None:
    ledger = build.ledger(("computing", 90, 72, "arithmetic"), ("python", 10, None, None))

    def outcome(**fields: Any) -> str:
        part = {"use": "rare", "total_ns": 1_800, "steps": 4, "every": 25, **fields}
        parts = (LoopPart(use="typical", total_ns=8_200, steps=100), LoopPart(**part))
        loop = LoopTime(total_ns=10_000, steps=100, typical_ns=82, parts=parts)
        rules = (compute_bound, memory_bound, unexplained)
        [finding] = [found for rule in rules for found in build.findings(rule, ledger, loop)]
        return str(finding.message)

    assert outcome() == (
        "No rule found a problem, but the step is not proven healthy. 18% of the loop is other work than training, in "
        "a few steps."
    )
    assert outcome(total_ns=1_000).startswith("90% of the 100 ms step runs at 80% of the compute limit")
    assert outcome(training_ns=1_000).startswith("90% of the 100 ms step"), "steps that train more"


@pytest.mark.parametrize(("channels_first", "advised"), [(True, True), (False, False)])
def test_unexplained_convolutions_with_channels_first_are_worth_a_trial_of_the_other_layout(
    build: Any, channels_first: bool, advised: bool
) -> None:
    ledger = build.ledger(("computing", 90, 10, "arithmetic"), ("python", 10, None, None))
    row = OpWorkTime(
        op="aten::convolution",
        phase="forward",
        ns=90_000_000,
        calls=1,
        ops=1,
        flops=10**8,
        bytes=0,
        precision="float32",
        kind="convolution",
        channels_first=channels_first,
    )
    work = StepWork(source="a trace", step_ns=100_000_000, rows=(row,))

    [finding] = build.findings(unexplained, ledger, work, made_limits(convolutions={"float32": (Rate(10**8, 1e10),)}))

    assert ("perfkit try --only channels-last" in finding.advice) == advised


def test_a_step_whose_limits_are_not_known_is_not_compute_bound(build: Any) -> None:
    assert build.findings(compute_bound, build.ledger(("computing", 100, None, None))) == []


def test_a_step_with_a_quarter_unexplained_is_not_compute_bound(build: Any) -> None:
    ledger = build.ledger(("computing", 75, 70, "arithmetic"), ("python", 25, None, None))

    assert build.findings(compute_bound, ledger) == []


def test_a_step_with_a_problem_that_could_not_be_quantified_is_not_compute_bound(build: Any) -> None:
    ledger = build.ledger(("computing", 100, 90, "arithmetic"), unquantified=("sync-in-step",))

    assert build.findings(compute_bound, ledger) == []


def test_a_step_that_is_divided_by_steps_of_another_loop_is_not_proven_healthy(build: Any) -> None:
    ledger = build.ledger(("computing", 90, 72, "arithmetic"), ("python", 10, None, None))
    place = {"file": "train.py", "owner": "user", "host_ns": 1}
    rows = tuple(
        LineRow(**place, line=line, function="step", phase="backward", samples=samples)
        for line, samples in ((20, 30), (50, 400))
    )
    traced = (TracedLine(**place, line=20, function="fit", phase="other", runs=1),)
    lines = Lines(period_ns=1, steps=40, rows=rows, traced=traced)

    assert build.findings(compute_bound, ledger, lines) == []
    [finding] = build.findings(unexplained, ledger, lines)
    assert "The recorded steps are of another loop than most of the run." in finding.message
