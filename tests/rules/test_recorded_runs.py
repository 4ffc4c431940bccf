"""Runs that were recorded on an H200: what is found there, against what the correction saved in turns.

`benchmarks/bench_gpu.py` recorded them and timed the steps, ``h200_resnet18`` is a program under ``perfkit run``. Some
traces are cut, and all paths are made up.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import perfkit
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.findings import Finding

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


def causes(diagnosis: Diagnosis) -> list[Finding]:
    return [one for one in diagnosis.findings if one.severity != "info" and one.follows is None]


@pytest.mark.parametrize(
    ("name", "rule", "line", "before_ms", "after_ms"),
    [
        ("h200_images_augmented", "input-bound", 169, 11.13, 5.94),
        ("h200_numpy_metric", "sync-in-step", 254, 14.66, 9.48),
    ],
)
def test_the_cause_comes_first_at_its_line_and_its_saving_holds_what_was_measured(
    name: str, rule: str, line: int, before_ms: float, after_ms: float
) -> None:
    found = diagnose(RECORDINGS / name)
    first = causes(found)[0]

    assert (first.rule, first.spent and first.spent.line) == (rule, line)
    assert found.ledger is not None
    # Shares: the steps of the recorded run and of the turns differ by the machine's other work.
    low, high = ((ns or 0) / found.ledger.ledger.wall_ns for ns in (first.saving_low_ns, first.saving_high_ns))
    assert low <= 1 - after_ms / before_ms <= high


def test_a_replay_without_the_loader_takes_as_long_as_the_step_with_workers() -> None:
    then = perfkit.what_if(RECORDINGS / "h200_images_augmented", hide_loader=8)

    assert then.low_ns <= 5.94 / 11.13 * then.step_ns <= then.high_ns


def test_a_replay_with_asynchronous_copies_takes_as_long_as_the_step_with_pinned_batches() -> None:
    # The device is behind: the window begins with what was launched before it, and each copy's call lasts as long as
    # the work before it.
    then = perfkit.what_if(RECORDINGS / "h200_pageable_batches", without=["copy-waits"])

    assert then.low_ns <= 58.54 / 64.57 * then.step_ns <= then.high_ns
    assert then.ideal_ns == pytest.approx(58.54 / 64.57 * then.step_ns, rel=0.02)


def test_a_model_of_torchvision_is_the_forward_and_its_launches_are_late() -> None:
    found = diagnose(RECORDINGS / "h200_resnet18")
    first, second, *_ = causes(found)

    assert found.phases is not None
    assert (found.phases.forward or 0) > 10 * (found.phases.other or 0)
    assert (first.rule, second.rule) == ("launch-bound", "unfused-optimizer")
    assert "cpu-preprocessing" not in [one.rule for one in found.findings]


def test_the_limit_of_kernels_is_known_from_the_step_for_lines_where_the_window_has_no_shapes() -> None:
    found = diagnose(RECORDINGS / "h200_pageable_batches")

    assert found.ledger is not None
    assert found.ledger.ledger.limits == "NVIDIA H200 data sheet, SXM"
    norms = [one.row for one in found.ledger.accounts() if one.row.name.startswith("aten::native_batch_norm_backward")]
    assert norms
    assert all((row.limit_ns or row.ns) < 0.1 * row.ns for row in norms)


def test_a_batch_norm_of_few_channels_is_told_of_channels_last() -> None:
    first, *rest = causes(diagnose(RECORDINGS / "h200_pageable_batches"))

    assert first.rule == "layout-conversion"
    assert "batch norms with channels first" in first.message
    assert "torch.channels_last" in first.advice
    assert "pageable-copy" in [one.rule for one in rest]
