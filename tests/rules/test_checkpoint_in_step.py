"""Saving is told against the mean of all steps: the typical one has no checkpoint in it."""

from __future__ import annotations

import math
from typing import Any

from perfkit.rules.python.checkpoint_in_step import check

MS = 1_000_000


def test_saving_every_few_steps_is_found_at_its_line(build: Any) -> None:
    work = build.work("checkpoint", 8, function="save", within="torch.serialization")

    [finding] = check(build.measured(step=build.step(20), every_step=build.step(28), host=(work,)))

    assert (finding.line, finding.function) == (12, "save")
    assert "8.0 ms of the mean step of 28.0 ms" in finding.message
    # A quarter as often; all of it, with 10 % for 100 samples and 15 % for what goes with it, added as squares.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (6 * MS, round(8 * (1 + math.hypot(0.1, 0.15)) * MS))


def test_the_phase_of_an_integration_counts_without_samples(build: Any) -> None:
    [finding] = check(build.measured(step=build.step(20), every_step=build.step(28, forward=20, checkpoint=8)))

    assert finding.cost_ns == 8 * MS


def test_seldom_checkpoints_and_absent_parts_are_silent(build: Any) -> None:
    seldom = build.measured(step=build.step(20), every_step=build.step(20.9), host=(build.work("checkpoint", 0.9),))

    assert not list(check(seldom))
    assert not list(check(build.measured()))
