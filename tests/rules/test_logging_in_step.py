"""logging-in-step: logging in every step, and at the end of an epoch only where it is a quarter of the time."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.host import HostLine
from perfkit.rules.python import logging_in_step

MS = 1_000_000


def test_logging_in_every_step_is_found_at_its_line(build: Any) -> None:
    step, mean = build.step(20, other=10), build.mean_step(20, other=10)
    work = build.work("logging", 8, function="draw", within="torch.utils.tensorboard > numpy")

    [finding] = build.findings(logging_in_step, step, mean, work)

    assert (finding.spent.line, finding.spent.function) == (12, "draw")
    assert (finding.saving_low_ns, finding.cost_ns) == (6 * MS, 8 * MS)


def test_work_spread_over_a_function_is_reported_at_the_line_that_calls_it(build: Any) -> None:
    step, mean = build.step(20, other=10), build.mean_step(20, other=10)
    one = build.work("logging", 8, called_from=Location(file="train.py", line=40, function="main"))
    lines: tuple[HostLine, ...] = (*one.lines, msgspec.structs.replace(one.lines[0], line=13))
    work = msgspec.structs.replace(one, host_ns=16 * MS, lines=lines)

    [finding] = build.findings(logging_in_step, step, mean, work)

    assert (finding.spent.line, finding.spent.function) == (40, "main")


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
