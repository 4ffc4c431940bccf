"""checkpoint-in-step: counted against the mean of all steps, because the typical one has no checkpoint in it."""

from __future__ import annotations

import math
from typing import Any

from perfkit.rules.python import checkpoint_in_step

MS = 1_000_000


def test_saving_every_few_steps_is_found_at_its_line(build: Any) -> None:
    work = build.work("checkpoint", 8, function="save", within="torch.serialization")

    [finding] = build.findings(checkpoint_in_step, build.step(20), build.mean_step(28), work)

    assert (finding.spent.line, finding.spent.function) == (12, "save")
    assert "8.0 ms of the mean step of 28.0 ms" in finding.message
    # A quarter as often; all of it, with 10 % for 100 samples and 15 % for the caches, added as squares.
    assert (finding.saving_low_ns, finding.saving_high_ns) == (6 * MS, round(8 * (1 + math.hypot(0.1, 0.15)) * MS))


def test_the_phase_of_an_integration_counts_without_samples(build: Any) -> None:
    [finding] = build.findings(checkpoint_in_step, build.step(20), build.mean_step(28, forward=20, checkpoint=8))

    assert finding.cost_ns == 8 * MS


def test_rare_checkpoints_and_missing_measures_are_not_reported(build: Any) -> None:
    rare = (build.step(20), build.mean_step(20.9), build.work("checkpoint", 0.9))

    assert not build.findings(checkpoint_in_step, *rare)
    assert not build.findings(checkpoint_in_step)
