"""Switches changes off and on while one program runs, so that it is compared with itself.

Blocks of steps without and with the changes follow one another in one process: the same memory, the same data loaders,
the same load of the machine. Which steps have them follows from a step's number alone, so that all ranks of a training
switch at the same step.

`follow` runs in the program's process; `blocks_of_switched` reads what it has recorded.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from perfkit.run.reading import RankFolder
from perfkit.run.records import Step

if TYPE_CHECKING:
    from perfkit.profiler import profile
    from perfkit.trial.applied import changes
    from perfkit.trial.shift import Blocks

#: How a failed switch begins in a rank's errors.
_SWITCHING = "switching changes"


class Switching(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes are switched, and at which steps they are on.

    Two blocks make a pair, one with the changes and one without, in random order: what comes regularly in a program, as
    logging every ten steps, then falls into both alike.

    Attributes:
        changes: As a user writes them; each one has `Change.toggle`.
        blocks: An even number.
        block_steps: Steps in a block; the first one is not compared, because the switch itself falls into it.
        warmup_steps: Steps at the start that are not compared. In the later half the changes are on, so that what comes
            once in either state is over.
        seed: Of the order.
    """

    changes: tuple[str, ...]
    blocks: int = 20
    block_steps: int = 5
    warmup_steps: int = 8
    seed: int = 0

    @property
    def steps(self) -> int:
        """How many steps all of it takes."""
        return self.warmup_steps + self.blocks * self.block_steps

    def is_on(self, step: int) -> bool:
        """Whether the step has the changes."""
        if step < self.warmup_steps:
            return step >= self.warmup_steps // 2
        pair, second = divmod((step - self.warmup_steps) // self.block_steps, 2)
        # What follows from an integer is the same on all machines and in all versions of Python.
        return (random.Random(self.seed * 1_000_003 + pair).random() < 0.5) != bool(second)

    def block_of(self, step: int) -> int | None:
        """The block in which the step is compared; None for one that is not compared."""
        block, place = divmod(step - self.warmup_steps, self.block_steps)
        return block if place and 0 <= block < self.blocks else None


def follow(switching: Switching, applied: changes, prof: profile) -> None:
    """Switch the changes, which are applied around the program, at each step that ``prof`` records from now on.

    They stay on until the first step is over: the program makes its loaders and optimizers before, and what is made
    while a change is off is made without it.
    """
    is_on = True

    def switch(step: int) -> None:
        nonlocal is_on
        if switching.is_on(step) != is_on:
            is_on = not is_on
            applied.resume() if is_on else applied.suspend()

    prof._follow_steps(_SWITCHING, switch)


def blocks_of_switched(folder: Path, switching: Switching) -> Blocks:
    """The blocks without and with the changes, of rank 0 of a run folder; none where switching has failed."""
    from perfkit.trial.shift import Blocks  # it loads numpy, which a program that is recorded must load by itself

    rank = RankFolder(folder / "rank-0", 0)
    if rank.rank is None or any(error.startswith(_SWITCHING) for error in rank.rank.errors):
        return Blocks([], [])
    times: dict[int, list[int]] = {}
    for row in ordinary_steps(rank):
        if (block := switching.block_of(row.step)) is not None:
            times.setdefault(block, []).append(row.wall_ns)
    blocks = Blocks([], [])
    for pair in range(0, switching.blocks, 2):
        if pair in times and pair + 1 in times:
            means = [fmean(times[pair]), fmean(times[pair + 1])]
            begins_on = switching.is_on(switching.warmup_steps + pair * switching.block_steps)
            blocks.first.append(means[begins_on])
            blocks.second.append(means[not begins_on])
    return blocks


def ordinary_steps(rank: RankFolder) -> list[Step]:
    """The steps that are only timed: those of training, or in a program without any, as in inference, all of them."""
    timed = [row for row in rank.steps if row.kind == "timed"]
    return [row for row in timed if row.mode == "train"] or timed
