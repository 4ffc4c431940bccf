"""Losses of a changed program against those of the unchanged one."""

from __future__ import annotations

import math

import pytest

from perfkit.trial.losses import BaselineLosses

LOSSES = (2.0, 1.5, 1.2, 1.1)


def shifted(by: float) -> tuple[float, ...]:
    return tuple(loss + by for loss in LOSSES)


def test_an_exact_change_keeps_the_loss_up_to_the_last_digit_of_float32():
    baseline = BaselineLosses(LOSSES, LOSSES)

    check = baseline.check([loss * (1 + 5e-7) for loss in LOSSES], "exact")

    assert (check.outcome, check.steps, check.sentence) == ("same", 4, "same loss")


def test_an_exact_change_that_moves_the_loss_differs_however_much_other_seeds_do():
    baseline = BaselineLosses(LOSSES, LOSSES, other_seeds=[shifted(0.3), shifted(-0.3)])

    check = baseline.check(shifted(0.001), "exact")

    assert check.outcome == "differs"
    assert "0.09" in check.sentence


def test_a_numeric_change_may_move_the_loss_as_much_as_other_seeds_do():
    baseline = BaselineLosses(LOSSES, LOSSES, other_seeds=[shifted(0.3), shifted(-0.3)])

    assert baseline.check(shifted(0.2), "numeric").outcome == "within-seeds"
    assert baseline.check(shifted(0.7), "numeric").outcome == "differs"


def test_where_seeds_change_nothing_a_numeric_change_must_not_either():
    baseline = BaselineLosses(LOSSES, LOSSES, other_seeds=[LOSSES, LOSSES])

    assert baseline.check(shifted(0.01), "numeric").outcome == "differs"


def test_a_program_that_is_not_deterministic_is_compared_with_its_own_spread():
    baseline = BaselineLosses(LOSSES, shifted(0.05))

    assert not baseline.deterministic
    assert baseline.repeats == pytest.approx(0.05 / 1.15)
    assert baseline.check(shifted(0.04), "exact").outcome == "within-seeds"
    assert baseline.check(shifted(0.2), "exact").outcome == "differs"


def test_a_loss_that_becomes_nan_only_with_the_change_differs():
    baseline = BaselineLosses(LOSSES, LOSSES)

    check = baseline.check((2.0, 1.5, math.nan, math.nan), "numeric")

    assert check.outcome == "differs"
    assert BaselineLosses((math.nan,), (math.nan,)).check((math.nan,), "exact").outcome == "same"


def test_without_a_loss_nothing_is_said_of_the_result():
    assert BaselineLosses((None, None), (None, None)).check((None, None), "exact").outcome == "unknown"
    assert BaselineLosses((), ()).check((), "numeric").outcome == "unknown"
