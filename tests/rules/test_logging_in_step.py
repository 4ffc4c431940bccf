"""logging-in-step: logging in every step, and at the end of an epoch only where it is a quarter of the time."""

from __future__ import annotations

from typing import Any

from perfkit._location import Location
from perfkit.rules.python import logging_in_step

MS = 1_000_000


def test_logging_in_every_step_is_found_at_its_line(build: Any) -> None:
    step, mean = build.step(20, other=10), build.mean_step(20, other=10)
    work = build.work("logging", 8, function="draw", within="torch.utils.tensorboard > numpy")

    [finding] = build.findings(logging_in_step, step, mean, work)

    assert (finding.spent.line, finding.spent.function) == (12, "draw")
    assert (finding.saving_low_ns, finding.cost_ns) == (6 * MS, 8 * MS)


def test_the_line_that_calls_a_logging_function_in_the_step_is_the_one_to_change(build: Any) -> None:
    step, mean = build.step(20, other=10), build.mean_step(20, other=10)
    work = build.work("logging", 8, called_from=Location(file="train.py", line=40, function="f"))
    loop = build.loop("train.py", line=38, loop_line=30, runs=1)

    [finding] = build.findings(logging_in_step, step, mean, work, loop)
    [outside] = build.findings(logging_in_step, step, mean, work)

    assert (finding.spent.line, finding.change.line) == (12, 40)
    assert outside.change is None


def test_a_few_long_steps_are_reported_only_from_a_quarter_on(build: Any) -> None:
    step = build.step(20, other=1)
    few = (step, build.mean_step(23, other=4), build.work("logging", 3))
    much = (step, build.mean_step(40, other=21), build.work("logging", 20))

    assert not build.findings(logging_in_step, *few)
    assert [finding.severity for finding in build.findings(logging_in_step, *much)] == ["critical"]


def test_the_phase_of_an_integration_counts_without_samples(build: Any) -> None:
    step, mean = build.step(20, forward=10, logging=8), build.mean_step(20, forward=10, logging=8)

    [finding] = build.findings(logging_in_step, step, mean)

    assert (finding.cost_ns, finding.spent) == (8 * MS, None)


def test_little_logging_and_missing_measures_are_not_reported(build: Any) -> None:
    step, mean = build.step(20, forward=20), build.mean_step(20, forward=20)

    assert not build.findings(logging_in_step, step, mean, build.work("logging", 0.9))
    assert not build.findings(logging_in_step)
