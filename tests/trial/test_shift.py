"""How much is saved: the interval holds the truth, and equal programs save nothing."""

from __future__ import annotations

import numpy as np
import pytest

from perfkit.trial.shift import LOOKS, MIN_PAIRS, Blocks, Decision, Shift, decided, floor_of, shift_of


def measured(
    chance: np.random.Generator, saved: float = 0.0, *, pairs: int = 12, noise: float = 0.05, offset: float = 0.0
) -> Blocks:
    """Blocks of a machine that gets slower, and in which some blocks take much longer; ns."""
    load = 10e6 * np.linspace(1.0, 1.4, pairs)
    first = load * np.exp(noise * chance.standard_t(3, pairs))
    second = load * np.exp(noise * chance.standard_t(3, pairs) + offset * chance.standard_normal()) * (1 - saved)
    return Blocks(first.tolist(), second.tolist())


def test_the_interval_holds_what_is_saved_in_95_percent() -> None:
    chance = np.random.default_rng(1)
    shifts = [shift_of([measured(chance, 0.25)]) for _ in range(60)]

    held = [one for one in shifts if one is not None and one.low <= 0.25 <= one.high]

    assert len(held) >= 57


def test_equal_programs_save_nothing_in_fifty_comparisons_of_three_looks_but_one() -> None:
    chance = np.random.default_rng(2)
    floor = floor_of([measured(chance, offset=0.015) for _ in range(2)])
    claims = 0
    for _ in range(50):
        blocks: list[Blocks] = []
        decision: Decision = "undecided"
        while decision == "undecided":
            blocks.append(measured(chance, offset=0.015))
            decision = decided(shift_of(blocks, floor=floor), floor, len(blocks))
        claims += decision == "faster"

    assert claims <= 1


def test_a_saving_above_the_floor_is_claimed_and_one_below_is_not() -> None:
    chance = np.random.default_rng(3)
    blocks = [measured(chance, 0.2, noise=0.01)]

    assert decided(shift_of(blocks), 0.1, 1, switched=True) == "faster"
    assert decided(shift_of(blocks), 0.3, LOOKS) == "no-difference"
    assert decided(shift_of([Blocks(blocks[0].second, blocks[0].first)]), 0.1, 1, switched=True) == "slower"


@pytest.mark.parametrize(
    ("shift", "look", "expected"),
    [
        (Shift(0.04, -0.02, 0.1, 20), 1, "undecided"),
        (Shift(0.04, -0.02, 0.1, 20), LOOKS, "no-difference"),
        (Shift(0.01, -0.01, 0.02, 20), 1, "no-difference"),
        (Shift(0.02, 0.01, 0.06, 20), 1, "undecided"),
        (None, 1, "undecided"),
        (None, LOOKS, "no-difference"),
    ],
)
def test_another_look_is_taken_while_it_may_show_more_and_three_at_most(
    shift: Shift | None, look: int, expected: Decision
) -> None:
    assert decided(shift, 0.03, look) == expected


def test_the_floor_follows_the_programs_own_comparisons() -> None:
    equal = Blocks([10.0] * 20, [10.0] * 20)
    differs = Blocks([10.0] * 20, [11.0] * 20)

    assert floor_of([equal] * 8) < floor_of([equal]) < floor_of([]) < floor_of([differs])
    assert floor_of([differs] * 8) > 0.1
    # Too few pairs show nothing.
    assert floor_of([Blocks([10.0], [20.0])]) == floor_of([])


def test_processes_of_their_own_widen_the_interval_by_what_they_differ_persistently() -> None:
    blocks = [measured(np.random.default_rng(4), 0.25, noise=0.001)]
    switched, apart = shift_of(blocks), shift_of(blocks, floor=0.05)
    thrice = shift_of(blocks * 3, floor=0.05)

    assert switched is not None
    assert apart is not None
    assert thrice is not None
    assert switched.high - switched.low < 0.01
    assert apart.low < 0.22 < 0.28 < apart.high
    assert thrice.high - thrice.low < apart.high - apart.low
    assert thrice.pairs == 36


def test_comparisons_that_differ_widen_the_interval_whatever_the_floor_is() -> None:
    chance = np.random.default_rng(5)
    apart = shift_of([measured(chance, saved, noise=0.001) for saved in (0.0, 0.2)], floor=0.01)

    assert apart is not None
    assert apart.low < 0 < 0.2 < apart.high


def test_the_same_blocks_give_the_same_shift_and_too_few_give_none() -> None:
    blocks = measured(np.random.default_rng(6), 0.1)

    assert shift_of([blocks]) == shift_of([blocks])
    assert shift_of([Blocks(blocks.first[: MIN_PAIRS - 1], blocks.second[: MIN_PAIRS - 1])]) is None
    assert shift_of([]) is None
    assert shift_of([Blocks([], [])]) is None


def test_one_pair_of_processes_is_no_claim_however_large_its_difference() -> None:
    halved = Shift(0.54, 0.42, 0.64, 17, chance=1e-7)

    assert decided(halved, 0.18, 1) == "undecided"
    assert decided(halved, 0.18, 2) == "faster"
