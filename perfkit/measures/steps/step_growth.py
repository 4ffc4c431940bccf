"""Whether steps take longer the later they come, which phase grows, and how fast; from the rows of steps.jsonl.

A machine that gets slower (heat, another program) lengthens all that a step does, and in stages; a cache that fills, or
a clock that rises, ends after some steps. A graph or a list that grows lengthens what works on it, in every step. So
growth is claimed where the level rises through the whole run, and either some other part of the step stays as long as
it was or nearly every step is longer than the ones before it.

On a busy machine the levels of the step follow the other programs. These take cores, and lengthen the processor time
of the thread that trains much less, so that is looked at too, where most of the step is such time. They slow all phases
of a step, so a phase that grows is also looked for in its ratio to the rest of the same step.

A list that each epoch empties grows from there again. Where steps get shorter at once, at equal distances, they are put
in the order of their places between two such steps, and the same is asked of that order.

The work of a step may grow because the task does: larger batches, longer inputs, or more calls of the model, as those
of an agent whose episodes last longer. Of a step with more calls, what is compared is its time per call. Larger inputs
cost more than in proportion (attention), so where they grow nothing is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from perfkit.measures.results.loop import StepGrowth
from perfkit.measures.steps._timed_rows import phase_columns, timed_rows
from perfkit.run.merging import merged, merged_in_blocks
from perfkit.run.records import PHASES, Phase, Phases, Step

#: Parts of the run whose levels are compared: an eighth of a short run still has three steps, whose median one outlier
#: does not move; and eight levels in order are no chance (see `_RISING`).
_PARTS = 8
#: Steps without which nothing is said: three per part.
_MIN_STEPS = 3 * _PARTS
#: Of the 28 pairs of levels, the later one must be higher in this many more than it is lower: with equal steps that
#: happens in 3 of 1000 runs (Kendall 1938).
_RISING = 22
#: The same for the ratio of one phase to the rest of the step: each of up to six phases is tested, and together they
#: may be wrong in 1 of 1000 equal runs (26 of 28: 0.2 of 1000 each).
_RISING_PHASE = 26
#: Of the rise of that ratio, the phase's own time must show this share: else the rest has become faster (a majority).
_OWN_RISE = 0.5
#: The level must rise by this share of the first one: the mean steps of two equal runs differ by about half as much.
_MIN_RISE = 0.10
#: It must rise by this many times the uncertainty of a level.
_CERTAIN = 4
#: The second half must have this share of the rise, the first one a small one: linear growth has half, quadratic 3/4,
#: what ends after its start (caches, heat) or begins once (another program) has none in one of them.
_LATE, _EARLY = 0.25, 0.05
#: A part of the step stays as it was where it grows by less than this share of the step's growth; it is seen from this
#: share of the first steps on.
_STAYS, _SEEN = 0.35, 0.05
#: Without such a part (Kendall's tau of the single steps; 1: each is longer than all before): measured on a busy
#: machine, healthy runs reach 0.55.
_TAU = 0.75
#: Processor time shows growth where it has this share of the step (waits are not in it), at least in the steps that
#: other programs disturb least, this share of them.
_COMPUTES, _LEAST_DISTURBED = 0.5, 0.1
#: Points that the pairs of single steps are made from: their number is the square.
_MAX_POINTS = 120
#: Growth begins again where the steps after are shorter than those before by this share of all and by `_CERTAIN` times
#: the uncertainty; this many steps of each are compared, and the distances differ by less than that share (all chosen).
_DROP, _BESIDE, _UNEQUAL = 0.25, 6, 0.2
#: Phases whose time depends on other processes, or that happen in few steps: neither grows with the program's work, nor
#: shows by staying that the machine is as fast as before.
_APART: frozenset[Phase] = frozenset({"data", "validation", "checkpoint"})

_Value = TypeVar("_Value")


def measure_step_growth(rows: Sequence[Step]) -> StepGrowth | None:
    """Growth of the timed steps; None where there is none, or too few steps to see one."""
    timed, _ = timed_rows(rows)
    return step_growth(timed)


def step_growth(timed: Sequence[Step]) -> StepGrowth | None:
    """Growth of these rows, which are ordinary steps in their order."""
    points = _of_equal_size(timed)
    if len(points) < _MIN_STEPS or _work_grows(points):
        return None
    calls = _more_calls(points)
    if calls is not None:
        timed, points = [_of_calls(row, calls) for row in timed], [_of_calls(row, calls) for row in points]
    rise = _of_step(points, list(map(_own_ns, points))) or _of_thread(timed) or _of_one_phase(points)
    if rise is not None:
        return _described(timed, points, rise, calls)
    restarts = _restarts(points)
    if not restarts:
        return None
    timed, points = _by_place(timed, restarts), _by_place(points, restarts)
    # A machine gets slower in rounds, too, as one that gets hot and then cools: one phase must grow, and not all.
    rise = _of_one_phase(points)
    if rise is None:
        return None
    return msgspec.structs.replace(_described(timed, points, rise, calls), restarts=restarts)


def _restarts(points: Sequence[Step]) -> tuple[int, ...]:
    """The steps at which growth begins again, the first one included; none where it does not, or not in a rhythm."""
    times = list(map(_own_ns, points))
    least = _DROP * median(times)
    drops: list[tuple[float, int]] = []
    for at in range(_BESIDE, len(times) - _BESIDE + 1):
        before, after = times[at - _BESIDE : at], times[at : at + _BESIDE]
        drop = median(before) - median(after)
        if drop >= max(least, _CERTAIN * (_uncertainty(before) + _uncertainty(after))):
            drops.append((drop, at))
    starts = [0]
    # The largest drop first: those beside it are of the same place.
    for _, at in sorted(drops, reverse=True):
        if all(abs(at - other) >= _MIN_STEPS for other in starts):
            starts.append(at)
    steps = sorted(points[at].step for at in starts)
    rounds = [end - start for start, end in pairwise(steps)]
    last = points[-1].step + points[-1].steps - steps[-1]
    if not rounds or max(*rounds, last) > (1 + _UNEQUAL) * min(rounds):
        return ()
    return tuple(steps)


def _by_place(rows: Sequence[Step], restarts: Sequence[int]) -> list[Step]:
    """The rows by their place after the last restart, which becomes their number."""
    placed = [
        msgspec.structs.replace(row, step=row.step - max(start for start in restarts if start <= row.step))
        for row in rows
        if row.step >= restarts[0]
    ]
    return sorted(placed, key=lambda row: row.step)


class _Rise(NamedTuple):
    """The parts' levels of a step that grows, most of it in ``phase``, whose first and last level stand beside it."""

    levels: list[float]
    shortest_ns: float
    noise_ns: float
    phase: Phase
    phase_first_ns: float
    phase_last_ns: float


def _of_step(points: Sequence[Step], times: Sequence[float]) -> _Rise | None:
    """The rise of ``times``, those of the whole steps, if their program is the reason and not the machine."""
    parts, levels = _parts(points), list(map(median, _parts(times)))
    if not _rises(_parts(times), levels[0], _RISING):
        return None
    phases = {phase: (_phase_level(parts[0], phase), _phase_level(parts[-1], phase)) for phase in PHASES}
    if not _something_stays(phases, levels) and _tau(times) < _TAU:
        return None
    phase = max((one for one in PHASES if one not in _APART), key=lambda one: phases[one][1] - phases[one][0])
    first = _parts(times)[0]
    return _Rise(levels, min(first), _uncertainty(first), phase, *phases[phase])


def _of_thread(timed: Sequence[Step]) -> _Rise | None:
    """The rise of the thread's processor time; each point is the steps between two readings, and their mean."""
    points = [merged(*steps) for _, steps in groupby(timed, key=lambda row: (row.steps, row.thread_ns))]
    known = [(row, row.thread_ns / row.wall_ns) for row in points if row.thread_ns is not None and row.wall_ns]
    if len(known) < max(_MIN_STEPS, len(points) - 1):
        return None
    if sorted(share for _, share in known)[-1 - int(_LEAST_DISTURBED * len(known))] < _COMPUTES:
        return None
    # What has rows of its own has no processor time of its own: its share of the time is taken off.
    return _of_step([row for row, _ in known], [_own_ns(row) * share for row, share in known])


def _of_one_phase(points: Sequence[Step]) -> _Rise | None:
    """The largest rise of one phase against the rest of the same steps; times are those beside a rest of usual length.

    Other programs lengthen a phase and the rest of its step alike, so their ratio has less noise than either.
    """
    found: list[_Rise] = []
    computing = {phase: column for phase, column in phase_columns(points).items() if phase not in _APART}
    columns = {phase: [ns or 0 for ns in column] for phase, column in computing.items()}
    total = list(map(sum, zip(*columns.values(), strict=True)))
    # An optimizer goes over its parameters and a bounded state: LBFGS fills its history in the first steps.
    for phase in (one for one in columns if one != "optimizer" and any(columns[one])):
        own = [ns / row.steps for ns, row in zip(columns[phase], points, strict=True)]
        rest = [(ns - own_ns) / row.steps for ns, own_ns, row in zip(total, columns[phase], points, strict=True)]
        usual = median(rest)
        if min(rest) <= 0 or usual < _SEEN * median(map(_own_ns, points)):
            continue
        scaled = [ns * usual / other for ns, other in zip(own, rest, strict=True)]
        parts = _parts(scaled)
        levels, own_levels = list(map(median, parts)), list(map(median, _parts(own)))
        own_rise = own_levels[-1] - own_levels[0]
        if own_rise < _OWN_RISE * (levels[-1] - levels[0]) or not _rises(parts, usual + levels[0], _RISING_PHASE):
            continue
        noise = _uncertainty(parts[0])
        whole = [usual + level for level in levels]
        found.append(_Rise(whole, usual + min(parts[0]), noise, phase, levels[0], levels[-1]))
    return max(found, key=lambda one: one.levels[-1] - one.levels[0], default=None)


def _parts(values: Sequence[_Value]) -> list[Sequence[_Value]]:
    return [values[len(values) * i // _PARTS : len(values) * (i + 1) // _PARTS] for i in range(_PARTS)]


def _rises(parts: Sequence[Sequence[float]], base_ns: float, rising: int) -> bool:
    """Whether the levels of the parts rise in order through the whole run, by a share of ``base_ns`` and the noise."""
    levels = list(map(median, parts))
    rise, middle = levels[-1] - levels[0], _PARTS // 2
    return (
        rise >= max(_MIN_RISE * base_ns, _CERTAIN * max(map(_uncertainty, parts)))
        and _order(levels) >= rising
        and levels[-1] - levels[middle] >= _LATE * rise
        and levels[middle - 1] - levels[0] >= _EARLY * rise
    )


def _described(timed: Sequence[Step], points: Sequence[Step], rise: _Rise, calls: float | None) -> StepGrowth:
    levels = rise.levels
    centres = [part[len(part) // 2].step for part in _parts(points)]
    start, end = timed[0].step, timed[-1].step + timed[-1].steps - 1
    middle = _PARTS // 2
    # The first and the last part grow as well: their levels are those of their middles.
    shortest = rise.shortest_ns
    early, late = (max(0.0, _slope(centres[half], levels[half])) for half in (slice(middle), slice(middle, None)))
    first = min(levels[0], max(shortest, levels[0] - early * (centres[0] - start)))
    last = levels[-1] + late * (end - centres[-1])
    steps = sum(row.steps for row in timed)
    knots = [(start, first), *zip(centres, levels, strict=True), (end, last)]
    found = StepGrowth(
        steps=steps,
        first_ns=round(first),
        last_ns=round(last),
        ns_per_step=late,
        excess_ns=0,
        noise_ns=round(rise.noise_ns),
        knots=tuple((step, round(ns)) for step, ns in knots),
        phase=rise.phase,
        phase_first_ns=round(rise.phase_first_ns),
        phase_last_ns=round(rise.phase_last_ns),
        calls=calls,
    )
    above = sum((found.level_ns(row.step + (row.steps - 1) / 2) - found.first_ns) * row.steps for row in timed)
    return msgspec.structs.replace(found, excess_ns=max(0, round(above / steps)))


def _slope(steps: Sequence[int], levels: Sequence[float]) -> float:
    """The median slope between two of the levels (Theil 1950): one level does not move it."""
    pairs = ((i, j) for j in range(len(levels)) for i in range(j) if steps[j] > steps[i])
    return median((levels[j] - levels[i]) / (steps[j] - steps[i]) for i, j in pairs)


def _own_ns(row: Step) -> float:
    """A step's time without what has rows of its own."""
    apart = (row.phases_ns.validation or 0) + (row.phases_ns.checkpoint or 0) + (row.compile_ns or 0)
    return max(0, row.wall_ns - apart) / row.steps


def _of_equal_size(timed: Sequence[Step]) -> list[Step]:
    """Rows of about as many steps each: the older half of a long run has merged rows, and their means include what is
    rare, as medians of single steps do not.
    """
    largest = max((row.steps for row in timed), default=1)
    if largest == 1:
        return list(timed)
    points = merged_in_blocks(timed, largest)
    # The newest steps may be too few for a point.
    return points[:-1] if len(points) > 1 and points[-1].steps < largest / 2 else points


def _work_grows(points: Sequence[Step]) -> bool:
    """Whether batches or inputs grow through the run, as in a curriculum: their time follows."""
    for name in ("batch_elements", "tokens", "samples"):
        sizes = [getattr(row, name) / row.steps for row in points if getattr(row, name) is not None]
        if len(sizes) == len(points) and _grows(sizes):
            return True
    inputs = [(row.input_elements or 0) / row.model_calls for row in points if row.model_calls]
    return len(inputs) == len(points) and _grows(inputs)


def _more_calls(points: Sequence[Step]) -> float | None:
    """The mean number of calls of models in a step, where later steps have more of them than the first ones."""
    calls = [row.model_calls / row.steps for row in points if row.model_calls]
    return sum(calls) / len(calls) if len(calls) == len(points) and _grows(calls) else None


def _grows(sizes: Sequence[float]) -> bool:
    third = len(sizes) // 3
    return median(sizes[-third:]) > (1 + _MIN_RISE) * median(sizes[:third])


def _of_calls(row: Step, calls: float) -> Step:
    """The row as if each of its steps had this many calls of models: its times in proportion."""
    factor = calls * row.steps / row.model_calls if row.model_calls else 1.0
    phases = {phase: round(ns * factor) for phase in PHASES if (ns := getattr(row.phases_ns, phase)) is not None}
    compile_ns = None if row.compile_ns is None else round(row.compile_ns * factor)
    thread_ns = None if row.thread_ns is None else round(row.thread_ns * factor)
    return msgspec.structs.replace(
        row, wall_ns=round(row.wall_ns * factor), thread_ns=thread_ns, phases_ns=Phases(**phases), compile_ns=compile_ns
    )


def _uncertainty(values: Sequence[float]) -> float:
    """The standard error of the median: 1.25 deviations over the root of the number, for normal noise."""
    middle = median(values)
    deviation = 1.48 * median(abs(value - middle) for value in values)
    return 1.25 * deviation / math.sqrt(len(values))


def _order(levels: Sequence[float]) -> int:
    """Kendall's S: the pairs whose later value is higher, less those whose later value is lower."""
    return sum((levels[j] > levels[i]) - (levels[j] < levels[i]) for j in range(len(levels)) for i in range(j))


def _tau(values: Sequence[float]) -> float:
    """Kendall's tau of at most `_MAX_POINTS` of the values, spread evenly."""
    every = -(-len(values) // _MAX_POINTS)
    chosen = values[::every]
    return _order(chosen) / (len(chosen) * (len(chosen) - 1) / 2)


def _phase_level(part: Sequence[Step], phase: Phase) -> float:
    return median(_phase_ns(row, phase) for row in part)


def _phase_ns(row: Step, phase: Phase) -> float:
    return (getattr(row.phases_ns, phase) or 0) / row.steps


def _something_stays(phases: dict[Phase, tuple[float, float]], levels: Sequence[float]) -> bool:
    """Whether a part of the step that computes is as long at the end as at the start: the machine is as fast."""
    growth = levels[-1] / max(1.0, levels[0]) - 1
    staying = sum(
        first
        for phase, (first, last) in phases.items()
        if phase not in _APART and last - first < _STAYS * growth * first
    )
    return staying >= _SEEN * levels[0]
