"""Measures a program with some changes against the same program with others: ``Comparer``.

In one process where all that differs can be switched off and on while the program runs (`switchback`); in two processes
that run in turns otherwise (`turns`); in whole runs, one after the other, where the memory does not hold both or the
system cannot stop a process.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from perfkit.trial.catalog import ChosenChange
from perfkit.trial.reruns import STEPPING, Rerun, RerunPlan, RerunResult, TriedProgram, start_rerun
from perfkit.trial.shift import MIN_PAIRS, Blocks
from perfkit.trial.switchback import Switching, blocks_of_switched
from perfkit.trial.turns import (
    TURN_S,
    WARMUP_STEPS,
    blocks_of_turns,
    can_stop_programs,
    compared_steps,
    extra_start_ns,
    run_in_turns,
    turn_of,
)

#: Steps of less than 100 ms are compared for this long in each program, or in each state: twenty turns.
_COMPARED_S = 20 * TURN_S
#: Shortest block of a program that is switched: some steps of 5 ms, and far more than a switch costs.
_BLOCK_S = 0.1
#: Steps of a block at least: the first is not compared, and of the rest the mean is taken.
_BLOCK_STEPS = 5
#: Blocks of a program that is switched: ten pairs at least, and no more than a bootstrap is quick with.
_MIN_BLOCKS, _MAX_BLOCKS = 20, 60
#: Shortest turn of a program that has too few steps for longer ones: ten times what changing places costs.
_MIN_TURN_S = 0.03
#: Steps in a block of a whole run: eight blocks in 40 steps.
_RUN_BLOCK_STEPS = 4


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The same program twice, with the changes ``before`` and with those ``after``.

    Attributes:
        blocks: Steps of both, measured next to one another; empty where one took too few steps.
        before, after: How both runs ended; the same object where one process was switched. Its losses are then those
            of steps with and without the changes, and its ``applied`` has those of both.
        switched: Whether one process was switched.
        seconds: How long it took.
        start_ns: What the first steps take longer after than before, as compiling does; None where that was not seen.
        step_ns: Typical step before and after; None where there are no blocks.
    """

    blocks: Blocks
    before: RerunResult
    after: RerunResult
    switched: bool
    seconds: float
    start_ns: int | None = None

    @property
    def step_ns(self) -> tuple[float, float] | None:
        return (median(self.blocks.first), median(self.blocks.second)) if self.blocks.first else None

    @property
    def completed(self) -> bool:
        """Whether neither run failed, was refused or was ended before its time."""
        return {self.before.ending, self.after.ending} <= {"stopped", "ended"}


class _Size(NamedTuple):
    """How much is run: steps of each program; blocks, and their steps, where one is switched; the length of a turn."""

    steps: tuple[int, int]
    blocks: int
    block_steps: int
    turn_s: float


class Comparer:
    """Compares one program with itself under different changes.

    Args:
        program: What the user asked to try.
        workspace: An existing folder, in which the reruns work.
        steps: What each program is stopped after, at least; programs with short steps make more.
        progress: Gets what is running, and the seconds since it began.
        step_s: How long a step takes, where that is known; else the first comparison finds out.
    """

    def __init__(
        self,
        program: TriedProgram,
        workspace: Path,
        *,
        steps: int,
        progress: Callable[[str, float], None],
        step_s: float | None = None,
    ) -> None:
        self._program = program
        self._workspace = workspace
        self._steps = steps
        self._progress = progress
        self._step_s = step_s
        #: Steps of the whole program, once it was over before it was stopped.
        self._total: int | None = None
        #: Whether whole runs are compared, one after the other.
        self._alone = not can_stop_programs()
        self._seed = 0
        #: How often the same two were compared. Which one starts first alternates, as it may get the better memory: of
        #: two processes of one program with 8 million weights the second one took 1.3 to 2.2 times as long in 5 of 7
        #: comparisons, and was shorter in none.
        self._compared: Counter[tuple[tuple[str, ...], ...]] = Counter()

    def compare(
        self,
        before: Sequence[ChosenChange],
        after: Sequence[ChosenChange],
        *,
        limit_s: float,
        steps: int | None = None,
        in_turns: bool = False,
    ) -> Compared:
        """Run both until they have made their steps, or end them after ``limit_s`` seconds.

        Where the first attempt shows that the steps are too short or too few for what was planned, there is a second.

        Args:
            before: Changes that the first program has.
            after: Changes that the second one has. Equal ones (A against A) run in turns.
            limit_s: Time for all of it.
            steps: Instead of those of the constructor.
            in_turns: Run two processes in turns also where one could be switched.

        Returns:
            A program that fails is a result too: see `RerunResult.ending`.
        """
        began = time.monotonic()
        plans = _names(before), _names(after)
        self._compared[plans] += 1
        switch = None if in_turns else _switchable(before, after)
        times = (self._step_s, self._step_s) if self._step_s is not None else None
        for attempt in (1, 2):
            size = self._size(steps or self._steps, times)
            left_s = limit_s - (time.monotonic() - began)
            compared = self._switched(switch, plans, size, left_s) if switch else self._apart(plans, size, left_s)
            times = self._learn(compared) or times
            again = attempt == 1 and compared.completed and len(compared.blocks.first) < MIN_PAIRS
            if not again or self._size(steps or self._steps, times) == size or time.monotonic() - began > limit_s / 2:
                break
        return msgspec.structs.replace(compared, seconds=time.monotonic() - began)

    def _learn(self, compared: Compared) -> tuple[float, float] | None:
        """How long a step of each takes, in seconds; notes that of the program, and how many steps there are."""
        results = compared.before, compared.after
        for result in results:
            if result.ending == "ended" and result.steps > WARMUP_STEPS:
                self._total = min(result.steps, self._total or result.steps)
        walls = [[row.wall_ns for row in compared_steps(result.folder)] for result in results]
        times = compared.step_ns or ((median(walls[0]), median(walls[1])) if all(walls) else None)
        if times is None:
            return None
        self._step_s = times[0] / 1e9
        return times[0] / 1e9, times[1] / 1e9

    def _size(self, steps: int, times: tuple[float, float] | None) -> _Size:
        """What a comparison takes in which a program makes ``steps`` steps of ``times`` seconds."""
        if times is None:
            return _Size((steps, steps), _even(max(_MIN_BLOCKS, 2 * steps / _BLOCK_STEPS)), _BLOCK_STEPS, TURN_S)
        slow_s = max(times)
        # Both for equally long: the turns are over when one is.
        running_s = max(steps * slow_s, _COMPARED_S)
        first, second = (WARMUP_STEPS + math.ceil(running_s / step_s) for step_s in times)
        turn_s = turn_of(slow_s)
        block_steps = max(_BLOCK_STEPS, math.ceil(_BLOCK_S / slow_s))
        blocks = _even(min(max(_MIN_BLOCKS, 2 * running_s / (block_steps * slow_s)), _MAX_BLOCKS))
        if self._total is not None:
            made = [min(steps, self._total) - WARMUP_STEPS for steps in (first, second)]
            shorter_s = min(made[0] * times[0], made[1] * times[1])
            turn_s = max(_MIN_TURN_S, min(turn_s, shorter_s / (2 * MIN_PAIRS)))
            left = self._total - Switching(changes=()).warmup_steps
            block_steps = max(2, min(block_steps, left // _MIN_BLOCKS))
            blocks = _even(max(2, min(blocks, left / block_steps)))
        return _Size((first, second), blocks, block_steps, turn_s)

    # -- one process

    def _switched(
        self, switch: tuple[str, ...], plans: tuple[tuple[str, ...], ...], size: _Size, limit_s: float
    ) -> Compared:
        common = tuple(name for name in plans[0] if name in plans[1])
        switching = Switching(changes=switch, blocks=size.blocks, block_steps=size.block_steps, seed=self._seed)
        self._seed += 1
        plan = RerunPlan(changes=common, switch=switching, steps=switching.steps)
        result = self._alone_until_it_ends(plan, limit_s)
        blocks = blocks_of_switched(result.folder, switching)
        if switch[0] in plans[0]:
            blocks = blocks._replace(first=blocks.second, second=blocks.first)
        return Compared(blocks=blocks, before=result, after=result, switched=True, seconds=0.0)

    def _alone_until_it_ends(self, plan: RerunPlan, limit_s: float) -> RerunResult:
        names = plan.changes + (plan.switch.changes if plan.switch is not None else ())
        self._progress(_shown(names), 0.0)
        with start_rerun(self._program, plan, self._workspace) as rerun:
            return rerun.wait(max(0.0, limit_s))

    # -- two processes

    def _apart(self, plans: tuple[tuple[str, ...], ...], size: _Size, limit_s: float) -> Compared:
        began = time.monotonic()
        if not self._alone:
            compared = self._in_turns(plans, size, limit_s)
            if "out-of-memory" not in (compared.before.ending, compared.after.ending):
                return compared
        compared = self._in_whole_runs(plans, size, limit_s - (time.monotonic() - began))
        # One alone had the memory that both together had not.
        self._alone = self._alone or compared.completed
        return compared

    def _in_turns(self, plans: tuple[tuple[str, ...], ...], size: _Size, limit_s: float) -> Compared:
        began = time.monotonic()
        both = [
            RerunPlan(changes=names, steps=steps, stops=True) for names, steps in zip(plans, size.steps, strict=True)
        ]
        swapped = self._compared[plans] % 2 == 0
        if swapped:
            both.reverse()
        shown = f"{_shown(plans[0])} and {_shown(plans[1])} in turns"
        with (
            start_rerun(self._program, both[0], self._workspace) as first,
            start_rerun(self._program, both[1], self._workspace) as second,
        ):
            turns = run_in_turns(
                [first.process, second.process],
                turn_s=size.turn_s,
                limit_s=max(0.0, limit_s),
                is_ready=lambda which: ((first, second)[which].folder / STEPPING).exists(),
                progress=lambda elapsed_s: self._progress(shown, elapsed_s),
            )
            took_s = time.monotonic() - began
            results = [_result(rerun, limit_s - took_s, took_s) for rerun in (first, second)]
        folders = [result.folder for result in results]
        blocks, start_ns = blocks_of_turns(folders, turns), extra_start_ns(folders, turns)
        if swapped:
            results.reverse()
            blocks = blocks._replace(first=blocks.second, second=blocks.first)
            start_ns = None if start_ns is None else -start_ns
        return Compared(
            blocks=blocks,
            before=results[0],
            after=results[1],
            switched=False,
            seconds=0.0,
            start_ns=start_ns,
        )

    def _in_whole_runs(self, plans: tuple[tuple[str, ...], ...], size: _Size, limit_s: float) -> Compared:
        """Each twice, as before, after, after, before: what changes steadily in the machine then adds to both alike."""
        began = time.monotonic()
        runs: tuple[list[RerunResult], list[RerunResult]] = ([], [])
        for number, which in enumerate((0, 1, 1, 0)):
            share_s = (limit_s - (time.monotonic() - began)) / (4 - number)
            runs[which].append(
                self._alone_until_it_ends(RerunPlan(changes=plans[which], steps=size.steps[which]), share_s)
            )
            if runs[which][-1].ending not in ("stopped", "ended"):
                break
        blocks = Blocks([], [])
        for one, other in zip(*runs, strict=False):
            for first, second in zip(_blocks_of_run(one.folder), _blocks_of_run(other.folder), strict=False):
                blocks.first.append(first)
                blocks.second.append(second)
        before, after = runs[0][-1], (runs[1] or runs[0])[-1]
        return Compared(blocks=blocks, before=before, after=after, switched=False, seconds=0.0)


def _result(rerun: Rerun, left_s: float, took_s: float) -> RerunResult:
    """What a program has recorded; the slower one may make its last steps for as long as the turns have taken."""
    with suppress(subprocess.TimeoutExpired):
        rerun.process.wait(max(0.0, min(left_s, took_s)))
    rerun.end("stopped" if left_s > 0 else "timed-out")
    return rerun.result()


def _switchable(before: Sequence[ChosenChange], after: Sequence[ChosenChange]) -> tuple[str, ...] | None:
    """The changes that one side has more than the other, if one process can be switched between both sides."""
    added = [one for one in after if one not in before]
    removed = [one for one in before if one not in after]
    different = added + removed
    # Two changes of the same thing, as threads=1 and threads=2, would be in place together.
    if not different or (added and removed) or not all(one.change.toggle for one in different):
        return None
    return _names(different)


def _names(chosen: Sequence[ChosenChange]) -> tuple[str, ...]:
    return tuple(map(str, chosen))


def _shown(names: Sequence[str]) -> str:
    return " + ".join(names) or "unchanged"


def _blocks_of_run(folder: Path) -> list[float]:
    times = [row.wall_ns for row in compared_steps(folder)]
    ends = range(_RUN_BLOCK_STEPS, len(times) + 1, _RUN_BLOCK_STEPS)
    return [fmean(times[end - _RUN_BLOCK_STEPS : end]) for end in ends]


def _even(number: float) -> int:
    return 2 * math.ceil(number / 2)
