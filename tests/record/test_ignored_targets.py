"""Targets that a loss over classes ignores, as the step in which ops are listened to shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from perfkit.record.samplers.constant_ops import ConstantOpLog
from perfkit.run.records import IgnoredTargets, Phase

HEAD = nn.Linear(8, 50)


def found(step: Callable[[], Any], phase: Phase = "forward") -> tuple[IgnoredTargets, ...]:
    log = ConstantOpLog(lambda: phase)
    for _ in range(2):
        log.start()
        step()
        log.stop()
    return log.inputs.ignored_targets.rows()


def targets(ignored: int, number: int = -100) -> torch.Tensor:
    """20 targets, the first of which are ignored."""
    made = torch.randint(50, (20,))
    made[:ignored] = number
    return made


def test_targets_that_a_loss_ignores_are_counted_in_its_line() -> None:
    def step() -> None:
        F.cross_entropy(HEAD(torch.randn(20, 8)), targets(15)).backward()

    [row] = found(step)

    assert (row.targets, row.ignored, row.classes) == (20, 15, 50)
    assert (row.file, row.line) == (__file__, step.__code__.co_firstlineno + 1)


def test_another_number_may_be_ignored_and_images_have_one_target_per_point() -> None:
    def padded() -> None:
        F.cross_entropy(HEAD(torch.randn(20, 8)), targets(5, 0), ignore_index=0)

    def points() -> None:
        F.cross_entropy(torch.randn(1, 50, 4, 5), targets(10).view(1, 4, 5))

    [row] = found(padded)
    assert row.ignored >= 5
    [row] = found(points)
    assert (row.targets, row.ignored, row.classes) == (20, 10, 50)


def test_where_nothing_is_ignored_or_nothing_is_trained_there_is_no_row() -> None:
    def step() -> None:
        F.cross_entropy(HEAD(torch.randn(20, 8)), targets(0))

    def evaluation() -> None:
        F.cross_entropy(HEAD(torch.randn(20, 8)), targets(15))

    assert not found(step)
    assert not found(evaluation, "validation")


def test_a_loss_that_a_library_computes_is_none_of_the_users() -> None:
    library: dict[str, Any] = {"F": F}
    text = "def loss(scores, targets):\n    return F.cross_entropy(scores, targets)\n"
    exec(compile(text, "/lib/site-packages/transformers/loss.py", "exec"), library)

    assert not found(lambda: library["loss"](HEAD(torch.randn(20, 8)), targets(15)))
