"""Runs two programs in turns: while one runs, the other is stopped.

A shared machine can be a quarter slower in one minute than in the next. That is more than many changes save, so two
runs one after the other show little. Here both are started at once and one of them is always stopped. They change
places every fifth of a second, so the machine's other load affects both alike.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from perfkit.errors import UsageError
from perfkit.run.reading import RankFolder
from perfkit.run.records import Step
from perfkit.trial.processes import family_of, send
from perfkit.trial.shift import MIN_PAIRS, Blocks
from perfkit.trial.switchback import ordinary_steps

#: Shortest turn. Far shorter than the periods in which a machine is slow, and far longer than a stop costs: some
#: milliseconds to find the processes, and caches that the other program has filled.
TURN_S = 0.2
#: Steps in a turn, where they take longer than that: with fewer, hardly one is without a stop in it.
_STEPS = 3
#: Steps at the start that are not compared: memory is touched, and algorithms are chosen, for the first time.
WARMUP_STEPS = 5

#: How much longer than the typical step a long one is, as the first of an epoch, in which workers start.
_LONG = 3
#: Share of a program's time that long steps take beyond the typical one, from which on they are compared too. Below,
#: they change a saving by less than what two processes of one program differ by.
_LONG_SHARE = 0.05

#: Time between two looks at programs that start.
_LOOK_S = 0.05

_Span = tuple[int, int]


class Turns(NamedTuple):
    """When each program ran, in ns of the run's clock: its turns, first to last, and the end of the last one."""

    running: tuple[list[_Span], list[_Span]]
    ended_ns: int


def can_stop_programs() -> bool:
    """Whether this system can stop a process and continue it later; Windows cannot."""
    return hasattr(signal, "SIGSTOP")


def turn_of(step_s: float) -> float:
    """How long a turn is for programs with steps of ``step_s``."""
    return max(TURN_S, _STEPS * step_s)


def run_in_turns(
    children: Sequence[subprocess.Popen[Any]],
    *,
    turn_s: float = TURN_S,
    limit_s: float,
    is_ready: Callable[[int], bool] | None = None,
    progress: Callable[[float], None] = lambda elapsed_s: None,
) -> Turns:
    """Let two programs run in turns until one ends or the time is over; the rest of both then runs undisturbed.

    Turns differ in length by up to a quarter, so that nothing that comes regularly, in the programs or in the machine,
    always falls into the turns of the same one.

    Args:
        children: Two programs that have just been started.
        turn_s: The mean length of a turn.
        limit_s: Time for both together.
        is_ready: Whether the first program (0) or the second (1) has begun its steps. Both start at once then, and the
            one that is ready waits for the other: what they take to start falls into no turn.
        progress: Called after each turn with the seconds that have passed.

    Raises:
        UsageError: the system cannot stop a process.
    """
    if not can_stop_programs():
        raise UsageError("programs can run in turns where processes can be stopped (SIGSTOP), which this system lacks")
    chance = random.Random(0)  # turns of a comparison that is repeated have the same lengths
    running: tuple[list[_Span], list[_Span]] = ([], [])
    began = time.perf_counter()
    try:
        if is_ready is not None:
            _await_both(children, is_ready, began + limit_s)
            send(family_of(children[0].pid), signal.SIGCONT)
        else:
            send(family_of(children[1].pid), signal.SIGSTOP)
        since_ns = time.perf_counter_ns()
        now, other = 0, 1
        while all(child.poll() is None for child in children) and time.perf_counter() - began < limit_s:
            time.sleep(turn_s * chance.uniform(0.75, 1.25))
            # Both are looked up before: that takes milliseconds, in which a program runs that is listed as stopped.
            ending, beginning = family_of(children[now].pid), family_of(children[other].pid)
            send(ending, signal.SIGSTOP)
            running[now].append((since_ns, time.perf_counter_ns()))
            since_ns = time.perf_counter_ns()
            send(beginning, signal.SIGCONT)
            now, other = other, now
            progress(time.perf_counter() - began)
        ended_ns = time.perf_counter_ns()
        running[now].append((since_ns, ended_ns))
    finally:
        for child in children:
            send(family_of(child.pid), signal.SIGCONT)
    return Turns(running, ended_ns)


def _await_both(children: Sequence[subprocess.Popen[Any]], is_ready: Callable[[int], bool], until: float) -> None:
    """Stop each program once it is ready, until both are; or until one has ended, or it is too late."""
    waiting = [0, 1]
    while waiting and all(child.poll() is None for child in children) and time.perf_counter() < until:
        for each in [one for one in waiting if is_ready(one)]:
            send(family_of(children[each].pid), signal.SIGSTOP)
            waiting.remove(each)
        time.sleep(_LOOK_S)


class RunningTime(NamedTuple):
    """A step: the turn in which it ended, its time without what its program was stopped for, and whether it was."""

    turn: int
    ns: int
    stopped: bool


def running_times(rows: Iterable[Step], spans: Sequence[_Span], ended_ns: int) -> list[RunningTime]:
    """The times of the steps that ended before ``ended_ns``; ``spans`` are the turns of their program."""
    times = []
    first = turn = 0
    for row in rows:
        begin_ns, end_ns = row.start_ns, row.start_ns + row.wall_ns
        if end_ns > ended_ns:
            break
        while first < len(spans) and spans[first][1] <= begin_ns:
            first += 1
        while turn + 1 < len(spans) and spans[turn][1] < end_ns:
            turn += 1
        within = spans[first : turn + 1]
        ran_ns = sum(max(0, min(end_ns, to_ns) - max(begin_ns, from_ns)) for from_ns, to_ns in within)
        times.append(RunningTime(turn, ran_ns, ran_ns < row.wall_ns))
    return times


def blocks_of_turns(folders: Sequence[Path], turns: Turns) -> Blocks:
    """Each turn of the first program with the second one's that follows; pairs without a step of both are left out.

    Every turn is in one pair only, so that the pairs are independent of each other. Where long steps take a part of the
    time, most turns have none: then a block is several turns.
    """
    times = [
        running_times(compared_steps(folder), spans, turns.ended_ns)
        for folder, spans in zip(folders, turns.running, strict=True)
    ]
    count = max(map(len, turns.running))
    long_steps = count >= MIN_PAIRS and any(map(_has_long_steps, times))
    means = [_means_of_parts(each, count) if long_steps else _means(each) for each in times]
    both = sorted(means[0].keys() & means[1].keys())
    return Blocks([means[0][turn] for turn in both], [means[1][turn] for turn in both], long_steps)


def _means(times: list[RunningTime]) -> dict[int, float]:
    """The mean of each turn's steps."""
    means = {turn: _mean(list(steps)) for turn, steps in groupby(times, key=lambda one: one.turn)}
    return {turn: mean for turn, mean in means.items() if mean is not None}


def _has_long_steps(times: list[RunningTime]) -> bool:
    typical = median(one.ns for one in times) if times else 0
    beyond = sum(one.ns - typical for one in times if one.ns > _LONG * typical)
    return beyond > _LONG_SHARE * sum(one.ns for one in times)


def _means_of_parts(times: list[RunningTime], turns: int) -> dict[int, float]:
    """The mean of all steps in each of `MIN_PAIRS` parts of the turns, equally many turns in each."""
    typical = round(median(one.ns for one in times)) if times else 0
    parts: dict[int, list[int]] = {}
    for one in times:
        # See `_mean`: a step with a stop in it took no less than others. Left out, long steps would be too many.
        parts.setdefault(one.turn * MIN_PAIRS // turns, []).append(max(one.ns, typical) if one.stopped else one.ns)
    return {part: fmean(steps) for part, steps in parts.items()}


def _mean(steps: list[RunningTime]) -> float | None:
    """The mean of a turn's steps; None where its only step ran in other turns alone.

    What a step waits for, as a device, a disk or a timer, goes on while its program is stopped. So a step with a stop
    in it counts only if it took longer than the turn's others: those that take long have a stop in them most often.
    """
    whole = [one.ns for one in steps if not one.stopped]
    typical = median(whole) if whole else 0
    counted = whole + [one.ns for one in steps if one.stopped and one.ns > typical]
    return fmean(counted) if counted else None


def extra_start_ns(folders: Sequence[Path], turns: Turns) -> int | None:
    """What the first steps of the second program take longer than the first one's, ns; None: not all of them ran."""
    times = []
    for folder, spans in zip(folders, turns.running, strict=True):
        first = RankFolder(folder / "rank-0", 0).steps[:WARMUP_STEPS]
        times.append([one.ns for one in running_times(first, spans, turns.ended_ns)])
    return sum(times[1]) - sum(times[0]) if len(times[0]) == len(times[1]) == WARMUP_STEPS else None


def compared_steps(folder: Path) -> list[Step]:
    """Rank 0's ordinary steps in a run folder, without the first ones."""
    return [row for row in ordinary_steps(RankFolder(folder / "rank-0", 0)) if row.step >= WARMUP_STEPS]
