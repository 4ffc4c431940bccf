"""Samples of the training thread as time of the step clock's phases.

A sample knows its phase as well as one can while the phase runs: what turns out to be a forward only once its backward
starts was sampled as ``other``. And the mean of some hundred samples is off by some percent. The step clock is exact,
so the samples of a phase share the time that the clock gives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from perfkit.measures.results.steps import StepBreakdown
from perfkit.run.records import KNOWN_AT_ONCE, PHASES, CallPaths, LineRow, Lines, Phase, Phases

#: Phase in which a sample was taken -> phase of the clock -> time per step that one sample stands for.
Scale = dict[Phase, dict[Phase, float]]


def clock_phases(phases: Phases) -> dict[Phase, int]:
    """The phases of the clock that take time, in ns per step."""
    return {phase: ns for phase in PHASES if (ns := getattr(phases, phase))}


def scale_to(clock_ns: Mapping[Phase, int], samples: Mapping[Phase, int]) -> Scale:
    """How much time one sample of each phase stands for, so that all samples add up to the clock's phases.

    Phases that are known while they run (`KNOWN_AT_ONCE`) are scaled each by itself. The samples of all others share
    the time of all other phases: a sample counts for its own phase up to that phase's time, the rest for phases that
    have too few. Phases without time on the clock or without samples are not in the result.
    """
    scale: Scale = {}
    for phase in KNOWN_AT_ONCE:
        if samples.get(phase) and clock_ns.get(phase):
            scale[phase] = {phase: clock_ns[phase] / samples[phase]}
    taken = {phase: samples[phase] for phase in PHASES if phase not in KNOWN_AT_ONCE and samples.get(phase)}
    clocked = {phase: ns for phase, ns in clock_ns.items() if phase not in KNOWN_AT_ONCE}
    if not taken or not clocked:
        return scale
    sample_ns = sum(clocked.values()) / sum(taken.values())
    missing = {phase: max(0.0, ns - sample_ns * taken.get(phase, 0)) for phase, ns in clocked.items()}
    missing_ns = sum(missing.values())
    for phase, count in taken.items():
        own = min(sample_ns, clocked.get(phase, 0) / count)
        shares = {phase: own} if own else {}
        for other, ns in missing.items():
            if ns and own < sample_ns:
                shares[other] = shares.get(other, 0.0) + (sample_ns - own) * ns / missing_ns
        scale[phase] = shares
    return scale


class ScaledPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Call paths with what a sample of each phase stands for, per step or, without steps, of the whole program.

    Attributes:
        paths: The tree of calls.
        scale: See `scale_to`.
        clock_ns: The clock's phases; empty where no step was timed, and times are those of the sampler alone.
    """

    paths: CallPaths
    scale: Scale
    clock_ns: dict[Phase, int]

    @property
    def without_samples(self) -> dict[Phase, int]:
        """The clock's phases in which no sample was taken: too short for one."""
        reached = {target for shares in self.scale.values() for target in shares}
        return {phase: ns for phase, ns in self.clock_ns.items() if phase not in reached}

    @property
    def outside(self) -> list[Phase]:
        """Sampled phases that the clock's step does not have: what comes in few steps."""
        sampled = Counter(self.paths.phase)
        return [phase for phase in PHASES if sampled[phase] and phase not in self.scale]


def scaled_paths(lines: Lines | None, step: StepBreakdown | None) -> ScaledPaths | None:
    """The call paths of a run's samples, scaled to its typical step; None where there are none that can be used."""
    paths = lines.paths if lines is not None else None
    if lines is None or paths is None or not sum(paths.samples) or not is_tree(paths):
        return None
    if step is None:
        sample_ns = lines.period_ns / max(1, lines.steps)
        return ScaledPaths(paths=paths, scale={phase: {phase: sample_ns} for phase in {*paths.phase}}, clock_ns={})
    samples: Counter[Phase] = Counter()
    for phase, count in zip(paths.phase, paths.samples, strict=True):
        samples[phase] += count
    clock_ns = clock_phases(step.phases_ns)
    return ScaledPaths(paths=paths, scale=scale_to(clock_ns, samples), clock_ns=clock_ns)


def samples_below(paths: CallPaths) -> list[int]:
    """The samples of each node with all nodes below it."""
    sums = list(paths.samples)
    for node in range(len(sums) - 1, -1, -1):
        if (parent := paths.parent[node]) >= 0:
            sums[parent] += sums[node]
    return sums


def is_tree(paths: CallPaths) -> bool:
    """Whether the columns fit together: a file may claim anything."""
    if len({len(column) for column in (paths.frame, paths.parent, paths.phase, paths.samples)}) > 1:
        return False
    parents = all(-1 <= parent < node for node, parent in enumerate(paths.parent))
    return parents and all(0 <= frame < len(paths.frames) for frame in paths.frame)


def scaled_rows(lines: Lines, step: StepBreakdown | None) -> tuple[LineRow, ...]:
    """The sampled lines with times of the step clock; rows of workers, and of what comes in few steps, as they are."""
    if step is None:
        return lines.rows
    samples: Counter[Phase] = Counter()
    for row in lines.rows:
        if row.worker is None:
            samples[row.phase] += row.samples
    scale = scale_to(clock_phases(step.phases_ns), samples)
    return tuple(
        msgspec.structs.replace(row, host_ns=round(row.samples * sum(scale[row.phase].values())))
        if row.worker is None and row.phase in scale
        else row
        for row in lines.rows
    )
