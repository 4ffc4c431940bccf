"""Logging in every step is told; at the end of an epoch only where it is a quarter of the time."""

from __future__ import annotations

from typing import Any

import msgspec

from perfkit._location import Location
from perfkit.measures.results.host import HostLine
from perfkit.rules.python.logging_in_step import check

MS = 1_000_000


def test_logging_in_every_step_is_found_at_its_line(build: Any) -> None:
    step = build.step(20, other=10)
    work = build.work("logging", 8, function="draw", within="torch.utils.tensorboard > numpy")

    [finding] = check(build.measured(step=step, every_step=step, host=(work,)))

    assert (finding.line, finding.function) == (12, "draw")
    assert (finding.saving_low_ns, finding.cost_ns) == (6 * MS, 8 * MS)


def test_work_spread_over_a_function_is_told_at_the_line_that_calls_it(build: Any) -> None:
    step = build.step(20, other=10)
    one = build.work("logging", 8, called_from=Location(file="train.py", line=40, function="main"))
    lines: tuple[HostLine, ...] = (*one.lines, msgspec.structs.replace(one.lines[0], line=13))
    work = msgspec.structs.replace(one, host_ns=16 * MS, lines=lines)

    [finding] = check(build.measured(step=step, every_step=step, host=(work,)))

    assert (finding.line, finding.function) == (40, "main")


def test_a_few_long_steps_are_told_only_where_they_are_a_quarter(build: Any) -> None:
    step = build.step(20, other=1)
    few = build.measured(step=step, every_step=build.step(23, other=4), host=(build.work("logging", 3),))
    much = build.measured(step=step, every_step=build.step(40, other=21), host=(build.work("logging", 20),))

    assert not list(check(few))
    assert [finding.severity for finding in check(much)] == ["critical"]


def test_the_phase_of_an_integration_counts_without_samples(build: Any) -> None:
    step = build.step(20, forward=10, logging=8)

    [finding] = check(build.measured(step=step, every_step=step))

    assert (finding.cost_ns, finding.file) == (8 * MS, None)


def test_little_logging_and_absent_parts_are_silent(build: Any) -> None:
    step = build.step(20, forward=20)

    assert not list(check(build.measured(step=step, every_step=step, host=(build.work("logging", 0.9),))))
    assert not list(check(build.measured()))
