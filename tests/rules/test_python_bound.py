"""python-bound: the user's own Python, with its line."""

from __future__ import annotations

import math
from typing import Any

from perfkit.rules.python import python_bound

MS = 1_000_000


def test_python_in_the_step_is_found_at_its_line(build: Any) -> None:
    [finding] = build.findings(python_bound, build.step(20, forward=20), build.work("python", 8))

    assert (finding.spent.file, finding.spent.line, finding.spent.function) == ("train.py", 12, "prepare")
    assert finding.severity == "critical"
    assert "8.0 ms of the 20.0 ms step (40%)" in finding.message


def test_the_saving_allows_for_the_error_of_sampling(build: Any) -> None:
    [few] = build.findings(python_bound, build.step(20), build.work("python", 8, samples=16))
    [many] = build.findings(python_bound, build.step(20), build.work("python", 8, samples=1600))

    assert few.cost_ns == many.cost_ns == 8 * MS
    assert few.saving_high_ns == round(8 * (1 + math.hypot(1 / 4, 0.25, 0.15)) * MS)
    assert many.saving_high_ns == round(8 * (1 + math.hypot(1 / 40, 0.25, 0.15)) * MS)
    assert many.saving_low_ns == round(6.8 * MS)


def test_noise_of_other_programs_in_the_mean_step_is_removed(build: Any) -> None:
    [finding] = build.findings(python_bound, build.step(20), build.mean_step(40), build.work("python", 8))

    assert finding.cost_ns == 4 * MS


def test_little_python_few_samples_and_other_work_are_not_reported(build: Any) -> None:
    step = build.step(20, forward=20)

    assert not build.findings(python_bound, step, build.work("python", 0.9))
    assert not build.findings(python_bound, step, build.work("python", 8, samples=9))
    assert not build.findings(python_bound, step, build.work("logging", 8))
    assert not build.findings(python_bound, step)
    assert not build.findings(python_bound, build.work("python", 8))
