"""Whether steps take longer the later they come, which phase grows, and how fast; from the rows of steps.jsonl.

A machine that gets slower (heat, another program) lengthens all that a step does, and in stages; a cache that fills, or
a clock that rises, ends after some steps. A graph or a list that grows lengthens what works on it, in every step. So
growth is claimed where the level rises through the whole run, and either some other part of the step stays as long as
it was or nearly every step is longer than the ones before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from perfkit.measures.results.loop import StepGrowth
from perfkit.measures.steps._timed_rows import timed_rows
from perfkit.run.merging import merged
from perfkit.run.records import PHASES, Phase, Step

#: Parts of the run whose levels are compared: an eighth of a short run still has three steps, whose median one outlier
#: does not move; and eight levels in order are no chance (see `_RISING`).
_PARTS = 8
#: Steps without which nothing is said: three per part.
_MIN_STEPS = 3 * _PARTS
#: Of the 28 pairs of levels, the later one must be higher in this many more than it is lower: with equal steps that
#: happens in 3 of 1000 runs (Kendall 1938).
_RISING = 22
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
#: Points that the pairs of single steps are made from: their number is the square.
_MAX_POINTS = 120
#: Phases whose time depends on other processes, or that happen in few steps: neither grows with the program's work, nor
#: shows by staying that the machine is as fast as before.
_APART: frozenset[Phase] = frozenset({"data", "validation", "checkpoint"})


def measure_step_growth(rows: Sequence[Step]) -> StepGrowth | None:
    """Growth of the timed steps; None where there is none, or too few steps to see one."""
    timed, _ = timed_rows(rows)
    return step_growth(timed)


def step_growth(timed: Sequence[Step]) -> StepGrowth | None:
    """Growth of these rows, which are ordinary steps in their order."""
    points = _of_equal_size(timed)
    if len(points) < _MIN_STEPS or _work_grows(points):
        return None
    parts = [points[len(points) * i // _PARTS : len(points) * (i + 1) // _PARTS] for i in range(_PARTS)]
    levels = [median(map(_own_ns, part)) for part in parts]
    rise = levels[-1] - levels[0]
    noise = max(_uncertainty(part) for part in parts)
    middle = _PARTS // 2
    if (
        rise < max(_MIN_RISE * levels[0], _CERTAIN * noise)
        or _order(levels) < _RISING
        or levels[-1] - levels[middle] < _LATE * rise
        or levels[middle - 1] - levels[0] < _EARLY * rise
    ):
        return None
    phases = {phase: (_phase_level(parts[0], phase), _phase_level(parts[-1], phase)) for phase in PHASES}
    if not _something_stays(phases, levels) and _tau(list(map(_own_ns, points))) < _TAU:
        return None
    phase = max((one for one in PHASES if one not in _APART), key=lambda one: phases[one][1] - phases[one][0])
    return _described(timed, parts, levels, phase, phases[phase])


def _described(
    timed: Sequence[Step],
    parts: Sequence[Sequence[Step]],
    levels: Sequence[float],
    phase: Phase,
    phase_levels: tuple[float, float],
) -> StepGrowth:
    centres = [part[len(part) // 2].step for part in parts]
    start, end = timed[0].step, timed[-1].step + timed[-1].steps - 1
    middle = _PARTS // 2
    # The first and the last part grow as well: their levels are those of their middles.
    shortest = min(map(_own_ns, parts[0]))
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
        noise_ns=round(_uncertainty(parts[0])),
        knots=tuple((step, round(ns)) for step, ns in knots),
        phase=phase,
        phase_first_ns=round(phase_levels[0]),
        phase_last_ns=round(phase_levels[1]),
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
    points: list[Step] = []
    for row in timed:
        if points and points[-1].steps + row.steps <= largest:
            points[-1] = merged(points[-1], row)
        else:
            points.append(row)
    # The newest steps may be too few for a point.
    return points[:-1] if len(points) > 1 and points[-1].steps < largest / 2 else points


def _work_grows(points: Sequence[Step]) -> bool:
    """Whether the batches grow through the run, as in a curriculum: their time follows."""
    third = len(points) // 3
    for name in ("batch_elements", "tokens", "samples"):
        sizes = [getattr(row, name) / row.steps for row in points if getattr(row, name) is not None]
        if len(sizes) == len(points) and median(sizes[-third:]) > (1 + _MIN_RISE) * median(sizes[:third]):
            return True
    return False


def _uncertainty(part: Sequence[Step]) -> float:
    """The standard error of the median of a part: 1.25 deviations over the root of the number, for normal noise."""
    values = list(map(_own_ns, part))
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
    return median((getattr(row.phases_ns, phase) or 0) / row.steps for row in part)


def _something_stays(phases: dict[Phase, tuple[float, float]], levels: Sequence[float]) -> bool:
    """Whether a part of the step that computes is as long at the end as at the start: the machine is as fast."""
    growth = levels[-1] / max(1.0, levels[0]) - 1
    staying = sum(
        first
        for phase, (first, last) in phases.items()
        if phase not in _APART and last - first < _STAYS * growth * first
    )
    return staying >= _SEEN * levels[0]
