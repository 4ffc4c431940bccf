"""Reruns draw the same random numbers, and those of another seed where that is wanted."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from perfkit.trial import seeds
from perfkit.trial.seeds import fix_seeds


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    seeds._patches.undo()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def draw() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def seeded(seed: int) -> tuple[float, ...]:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return (*draw(), float(np.random.default_rng(seed).random()))


def test_a_program_without_seeds_draws_the_same_numbers_in_each_rerun() -> None:
    # Each process has another seed of the system's.
    torch.seed()
    fix_seeds(0)
    first = draw()
    torch.seed()
    fix_seeds(0)
    assert draw() == first


def test_an_offset_is_added_to_every_seed_of_the_program() -> None:
    plain, shifted = seeded(3), seeded(8)
    fix_seeds(5)
    assert seeded(3) == shifted
    seeds._patches.undo()
    fix_seeds(0)
    assert seeded(3) == plain


def test_a_program_without_seeds_draws_other_numbers_with_an_offset() -> None:
    fix_seeds(0)
    first = draw()
    fix_seeds(1)
    assert all(one != other for one, other in zip(first, draw(), strict=True))
