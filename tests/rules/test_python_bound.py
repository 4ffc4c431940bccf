"""The user's own Python is told with its line; little of it, too few samples and other kinds of work are not."""

from __future__ import annotations

import math
from typing import Any

from perfkit.rules.python.python_bound import check

MS = 1_000_000


def test_python_in_the_step_is_found_at_its_line(build: Any) -> None:
    measured = build.measured(step=build.step(20, forward=20), host=(build.work("python", 8),))

    [finding] = check(measured)

    assert (finding.file, finding.line, finding.function) == ("train.py", 12, "prepare")
    assert finding.severity == "critical"
    assert "8.0 ms of the 20.0 ms step (40%)" in finding.message


def test_the_gain_leaves_room_for_the_error_of_sampling(build: Any) -> None:
    [few] = check(build.measured(step=build.step(20), host=(build.work("python", 8, samples=16),)))
    [many] = check(build.measured(step=build.step(20), host=(build.work("python", 8, samples=1600),)))

    assert few.cost_ns == many.cost_ns == 8 * MS
    assert few.saving_high_ns == round(8 * (1 + math.hypot(1 / 4, 0.25, 0.15)) * MS)
    assert many.saving_high_ns == round(8 * (1 + math.hypot(1 / 40, 0.25, 0.15)) * MS)
    assert many.saving_low_ns == round(6.8 * MS)


def test_a_neighbours_noise_in_the_mean_step_is_taken_out(build: Any) -> None:
    measured = build.measured(step=build.step(20), every_step=build.step(40), host=(build.work("python", 8),))

    [finding] = check(measured)

    assert finding.cost_ns == 4 * MS


def test_little_python_few_samples_and_other_work_are_silent(build: Any) -> None:
    step = build.step(20, forward=20)

    assert not list(check(build.measured(step=step, host=(build.work("python", 0.9),))))
    assert not list(check(build.measured(step=step, host=(build.work("python", 8, samples=9),))))
    assert not list(check(build.measured(step=step, host=(build.work("logging", 8),))))
    assert not list(check(build.measured(step=step)))
    assert not list(check(build.measured(host=(build.work("python", 8),))))
