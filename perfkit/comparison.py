"""What changed between two runs, whether it is more than noise, and whether the two did the same work."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from perfkit._format import change, ms, rate
from perfkit._html import html_table
from perfkit.diagnosis import Diagnosis, diagnose
from perfkit.errors import UsageError
from perfkit.findings import Finding
from perfkit.measures.results.kernel_profiles import KernelProfile
from perfkit.rules._step_budget import NEGLIGIBLE
from perfkit.run.reading import RankFolder, is_run_folder, read_run
from perfkit.run.records import PHASES, Rank, Step

#: Version of a comparison's JSON. 1: the first. 2: kinds of differences, changed settings, workload, losses, budgets.
SCHEMA = 2

Kind = Literal["step", "phase", "range", "op", "kernel"]
Change = Literal["faster", "slower", "no difference", "not tested"]
Same = Literal["same", "different", "unknown"]
Source: TypeAlias = "str | os.PathLike[str] | Diagnosis"

#: Of ranges, ops and kernels so many of each are kept, those that changed most: what a person reads.
_ROWS = 10

#: What a budget may be put on, in the order of how little it flickers.
COUNTS = ("syncs", "recompiles", "graph breaks", "launches", "ops")

#: Two losses of the same training agree to this (relative): sums in another order differ in the last digits of
#: float32 (1e-7), and training carries that on; a wrong computation is off by far more.
_SAME_LOSS = 1e-3

#: Settings of the process whose change alone explains another step time.
_SETTINGS = ("torch.num_threads", "cpu_affinity", "cpu_count")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One time per step before and after: of the step, a phase, a range, an op (own time), or a kernel (device time).

    ``low_ns`` .. ``high_ns`` is the 95% interval of after - before over the noise between steps, None
    where the single steps are not known; ``change`` is then "not tested". Noise between launches of the
    same program is not in it: that takes several runs. ``before_ns`` or ``after_ns`` is None where that side has no
    such range, op or kernel.
    """

    kind: Kind
    name: str
    before_ns: int | None
    after_ns: int | None
    low_ns: int | None = None
    high_ns: int | None = None
    change: Change = "not tested"

    @property
    def changed(self) -> str:
        """How much it changed, in words; "new" or "gone" where only one side has it."""
        if self.before_ns is None:
            return "new"
        return "gone" if self.after_ns is None else change(self.before_ns, self.after_ns)


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A number that does not flicker: syncs, launches, ops per step; recompiles and graph breaks of the whole run."""

    name: str
    before: float
    after: float


class ProfileChange(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that ncu profiled, before and after; None where that side has no such kernel.

    Kernels are matched by name, grid and block; those that are left by name, for a change of the grid is what many
    changes are about.
    """

    name: str
    before: KernelProfile | None
    after: KernelProfile | None

    @property
    def changed(self) -> str:
        """How much the time of a launch changed, in words; "new" or "gone" where only one side has it."""
        if self.before is None or self.after is None:
            return "gone" if self.after is None else "new"
        before, after = self.before.mean_ns, self.after.mean_ns
        return change(before, after) if before is not None and after is not None else "-"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two diagnoses side by side: ``gone`` findings only the first has, ``new`` ones only the second.

    ``workload`` says whether both did the same work, from what is known of their batches, models and devices;
    ``changed`` what differs in settings and workload. ``result`` says whether their losses agree. ``broken`` are the
    budgets that the second does not keep, each a sentence. ``kernel_profiles`` are those of two reports of ncu, longest
    first.
    """

    schema: int = SCHEMA
    before: str
    after: str
    verdict: str
    differences: tuple[Difference, ...] = ()
    kernel_profiles: tuple[ProfileChange, ...] = ()
    counts: tuple[Count, ...] = ()
    gone: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    workload: Same = "unknown"
    changed: tuple[str, ...] = ()
    result: Same = "unknown"
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The comparison as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    def __repr__(self) -> str:
        return f"<comparison of {self.before} with {self.after}: {self.verdict}>"

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, what changed, and the findings gone and new; no script, all escaped."""
        parts = [f"<p><b>{escape(self.verdict)}</b></p>"]
        parts += [f"<p><b>Broken budget: {escape(sentence)}</b></p>" for sentence in self.broken]
        differences = [
            (one.kind, one.name, *("" if ns is None else ms(ns) for ns in (one.before_ns, one.after_ns)), one.changed)
            for one in self.differences
        ]
        counts = [("count", one.name, rate(one.before), rate(one.after), "") for one in self.counts]
        if differences or counts:
            parts.append(html_table(("of", "name", "before", "after", "change"), [*differences, *counts]))
        findings = [
            (title, one.rule, f"{one.file}:{one.line}" if one.file is not None else "", one.message)
            for title, found in (("gone", self.gone), ("new", self.new))
            for one in found
        ]
        if findings:
            parts.append(html_table(("finding", "rule", "where", "what"), findings))
        return "".join((*parts, *(f"<p><i>{escape(note)}</i></p>" for note in (*self.changed, *self.notes))))


class _Side(NamedTuple):
    """One of the two: its diagnosis, and of a run folder its timed steps and rank.json."""

    diagnosis: Diagnosis
    steps: list[Step]
    rank: Rank | None
    script: str | None


def compare(
    before: Source,
    after: Source,
    *,
    max_slowdown: float | None = None,
    max_more: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare two runs, traces, reports of ncu, or diagnoses: what changed, and which findings are gone and new.

    Differences of step and phases are tested by a bootstrap over the single steps, which run folders hold; traces and
    `Diagnosis` objects hold means only, and their differences are "not tested".

    Args:
        before: A run folder, a trace, a report of ncu, or a diagnosis.
        after: What to compare with it.
        max_slowdown: Budget for the step: it may be slower by this share (0.03 = 3%). Broken only by a difference that
            is more than noise, where that can be tested.
        max_more: Budgets for counts: "syncs", "recompiles", "graph breaks", "launches", "ops" -> how many more are
            allowed. A count that one side did not record breaks its budget: what was not looked at is not kept.

    Raises:
        TraceError, RunError: a path is missing, or neither a run nor a trace.
        UsageError: a budget that cannot be.
    """
    if max_slowdown is not None and not (math.isfinite(max_slowdown) and max_slowdown >= 0):
        raise UsageError(f"max_slowdown must be a share of at least 0 (0.03 = 3%), got {max_slowdown!r}")
    for name, more in (max_more or {}).items():
        if name not in COUNTS:
            raise UsageError(f"max_more takes {', '.join(COUNTS)}, got {name!r}")
        if not (math.isfinite(more) and more >= 0):
            raise UsageError(f"max_more for {name} must be a number of at least 0, got {more!r}")
    sides = _side(before), _side(after)
    first, second = (side.diagnosis for side in sides)
    differences = _step_differences(*sides)
    counts = _counts(first, second)
    changed, workload = _changed(*sides)
    result, losses = _losses(*sides)
    differences += _row_differences(first, second)
    profiles = _profile_changes(first, second)
    return Comparison(
        before=first.source,
        after=second.source,
        verdict=_profiled(first, second, profiles) or _verdict(differences),
        differences=tuple(differences),
        kernel_profiles=profiles,
        counts=counts,
        gone=_only_in(first, second),
        new=_only_in(second, first),
        workload=workload,
        changed=changed,
        result=result,
        broken=_broken(differences, counts, max_slowdown, max_more or {}),
        notes=(*_notes(*sides, workload), *losses),
    )


def _side(source: Source) -> _Side:
    if isinstance(source, Diagnosis):
        return _Side(source, [], None, None)
    folder = Path(source)
    if not is_run_folder(folder):
        return _Side(diagnose(source), [], None, None)
    run = read_run(folder)
    lowest: RankFolder | None = run.ranks[min(run.ranks)] if run.ranks else None
    rows = lowest.steps if lowest is not None else ()
    timed = [row for row in rows if row.mode == "train" and row.kind == "timed"]
    script = os.path.basename(run.run.command[0]) if run.run is not None and run.run.command else None
    return _Side(diagnose(source), timed, lowest.rank if lowest is not None else None, script)


# -- times


def _mean(diagnosis: Diagnosis, name: str) -> int | None:
    if diagnosis.step is None:
        return None
    if name == "step":
        return diagnosis.step.wall_ns
    mean: int | None = getattr(diagnosis.step.phases_ns, name)
    return mean


def _step_differences(first: _Side, second: _Side) -> list[Difference]:
    from perfkit.measures.steps.difference_interval import (
        MIN_STEPS,  # numpy: a comparison of two JSON files has no need of it
    )

    means = {name: (_mean(first.diagnosis, name), _mean(second.diagnosis, name)) for name in ("step", *PHASES)}
    known = {name: (b, a) for name, (b, a) in means.items() if b is not None and a is not None}
    tested = known and min(len(first.steps), len(second.steps)) >= MIN_STEPS
    intervals = _intervals(first.steps, second.steps, list(known)) if tested else {}
    differences = []
    for name, (before, after) in known.items():
        low, high = intervals.get(name, (None, None))
        answer: Change = "not tested"
        if low is not None and high is not None:
            answer = "faster" if high < 0 else "slower" if low > 0 else "no difference"
        kind: Kind = "step" if name == "step" else "phase"
        differences.append(
            Difference(kind=kind, name=name, before_ns=before, after_ns=after, low_ns=low, high_ns=high, change=answer)
        )
    return differences


def _intervals(before: list[Step], after: list[Step], names: list[str]) -> dict[str, tuple[int, int]]:
    import numpy as np

    from perfkit.measures.steps.difference_interval import difference_interval

    times = [np.array([[_time(row, name) for name in names] for row in rows]) for rows in (before, after)]
    low, high = difference_interval(*times)
    return {name: (round(low[column]), round(high[column])) for column, name in enumerate(names)}


def _time(row: Step, name: str) -> float:
    total = row.wall_ns if name == "step" else getattr(row.phases_ns, name)
    # A phase that a step did not have (validation, a checkpoint) took none of its time.
    return (total or 0) / row.steps


def _row_differences(first: Diagnosis, second: Diagnosis) -> list[Difference]:
    """Ranges, ops and kernels whose time per step changed by 5% of the step or more: those that changed most."""
    wall_ns = min((d.figures.wall_ns for d in (first, second) if d.figures.wall_ns), default=0)
    sides: dict[Kind, Callable[[Diagnosis], dict[str, float]]] = {"range": _ranges, "op": _ops, "kernel": _kernels}
    differences = []
    for kind, times in sides.items():
        before, after = times(first), times(second)
        if not before or not after:
            continue  # one side has no such table: nothing is new or gone by that
        names = sorted(before.keys() | after.keys(), key=lambda n: -abs(after.get(n, 0) - before.get(n, 0)))
        for name in names[:_ROWS]:
            was, is_ = before.get(name), after.get(name)
            if abs((is_ or 0) - (was or 0)) >= max(1, NEGLIGIBLE * wall_ns):
                differences.append(
                    Difference(
                        kind=kind,
                        name=name,
                        before_ns=None if was is None else round(was),
                        after_ns=None if is_ is None else round(is_),
                    )
                )
    return differences


def _trace_steps(diagnosis: Diagnosis) -> int:
    return diagnosis.figures.trace.steps if diagnosis.figures.trace is not None else 0


def _ranges(diagnosis: Diagnosis) -> dict[str, float]:
    steps = _trace_steps(diagnosis)
    return {row.name: row.host_ns / steps for row in diagnosis.figures.ranges if steps and row.source == "trace"}


def _ops(diagnosis: Diagnosis) -> dict[str, float]:
    steps = _trace_steps(diagnosis)
    return {row.name: row.self_ns / steps for row in diagnosis.figures.ops if steps}


def _kernels(diagnosis: Diagnosis) -> dict[str, float]:
    steps = _trace_steps(diagnosis)
    return {row.name: row.total_ns / steps for row in diagnosis.figures.kernels if steps}


# -- kernels that were profiled one by one


def _profile_changes(first: Diagnosis, second: Diagnosis) -> tuple[ProfileChange, ...]:
    sides = first.figures.kernel_profiles, second.figures.kernel_profiles
    if sides[0] is None or sides[1] is None:
        return ()
    before, after = (list(side.rows) for side in sides if side is not None)
    changes = []
    same: Sequence[Callable[[KernelProfile], object]] = (
        lambda row: (row.name, row.grid, row.block),
        lambda row: row.name,
    )
    for key in same:
        waiting: dict[object, list[KernelProfile]] = {}
        for row in after:
            waiting.setdefault(key(row), []).append(row)
        left = []
        for row in before:
            matches = waiting.get(key(row))
            if matches:
                changes.append(ProfileChange(name=row.name, before=row, after=matches.pop(0)))
            else:
                left.append(row)
        before, after = left, [row for rows in waiting.values() for row in rows]
    changes += [ProfileChange(name=row.name, before=row, after=None) for row in before]
    changes += [ProfileChange(name=row.name, before=None, after=row) for row in after]
    return tuple(sorted(changes, key=_longest, reverse=True))


def _longest(one: ProfileChange) -> int:
    return max((row.total_ns or 0 for row in (one.before, one.after) if row is not None), default=0)


def _profiled(first: Diagnosis, second: Diagnosis, changes: Sequence[ProfileChange]) -> str | None:
    """The verdict of two reports of ncu; None where neither side is one."""
    sides = first.figures.kernel_profiles, second.figures.kernel_profiles
    if sides == (None, None):
        return None
    if None in sides:
        return "The two cannot be compared: one is a report of Nsight Compute, the other is not."
    pairs = [
        (one.before.mean_ns * one.before.launches, one.after.mean_ns * one.before.launches)
        for one in changes
        if one.before is not None and one.after is not None and one.before.mean_ns and one.after.mean_ns is not None
    ]
    if not pairs:
        return "The two cannot be compared: no kernel was profiled, with its time, on both sides."
    before, after = (sum(times) for times in zip(*pairs, strict=True))
    kernels = "kernel that both profiled takes" if len(pairs) == 1 else f"{len(pairs)} kernels that both profiled take"
    return (
        f"The {kernels} {ms(before)} before, {ms(after)} after ({change(before, after)}) for as many launches; "
        "whether that is more than noise was not tested."
    )


# -- counts, workload, result


def _counts(first: Diagnosis, second: Diagnosis) -> tuple[Count, ...]:
    before, after = _counted(first), _counted(second)
    return tuple(
        Count(name=name, before=was, after=is_)
        for name in COUNTS
        if (was := before[name]) is not None and (is_ := after[name]) is not None
    )


def _counted(diagnosis: Diagnosis) -> dict[str, float | None]:
    figures, step = diagnosis.figures, diagnosis.step
    return {
        "syncs": figures.syncs_per_step,
        "recompiles": step.recompiles if step is not None else None,
        "graph breaks": figures.graph_breaks,
        "launches": figures.launches_per_step,
        "ops": figures.ops_per_step,
    }


def _changed(first: _Side, second: _Side) -> tuple[tuple[str, ...], Same]:
    """What differs in workload and settings, and whether the work is the same as far as both sides tell."""
    before, after = _workload(first), _workload(second)
    common = [name for name in before if name in after]
    different = [name for name in common if before[name] != after[name]]
    sentences = [f"{name}: {before[name]} → {after[name]}" for name in different]
    was, is_ = _settings(first), _settings(second)
    sentences += [f"{name}: {was[name]} → {is_[name]}" for name in was if name in is_ and was[name] != is_[name]]
    same: Same = "different" if different else "same" if {"samples per step", "operations"} & set(common) else "unknown"
    return tuple(sentences), same


def _workload(side: _Side) -> dict[str, str]:
    """What defines the work of a step: what it works on, how much it computes, and on which device."""
    facts: dict[str, str] = {}
    profiles = side.diagnosis.figures.kernel_profiles
    if profiles is not None and profiles.compute_capability is not None:
        facts["compute capability"] = profiles.compute_capability
    step, rank, trace = side.diagnosis.step, side.rank, side.diagnosis.figures.trace
    if step is not None and step.samples_per_step is not None:
        facts["samples per step"] = f"{step.samples_per_step:.4g}"
    if rank is not None:
        if rank.flops is not None and rank.flops.by_precision:
            # The largest digit counts: the last batch of an epoch, or a longer sequence, is the same model.
            facts["operations"] = f"{sum(rank.flops.by_precision.values()):.2g} FLOP per step"
        facts["device"] = ", ".join(rank.devices) or "CPU"
        facts.update({f"dataset {loader.role}": loader.dataset for loader in rank.loaders})
    elif trace is not None:
        facts["device"] = ", ".join(trace.devices) or "CPU"
    if side.script is not None:
        facts["script"] = side.script
    return facts


def _settings(side: _Side) -> dict[str, str]:
    rank = side.rank
    if rank is None:
        return {}
    facts = {f"version of {name}": version for name, version in rank.versions.items()}
    facts.update({name: rank.settings[name] for name in _SETTINGS if name in rank.settings})
    for loader in rank.loaders:
        at = f"DataLoader({loader.dataset})"
        facts[f"{at} num_workers"] = str(loader.num_workers)
        facts[f"{at} batch_size"] = str(loader.batch_size)
        facts[f"{at} pin_memory"] = str(loader.pin_memory)
    return facts


def _losses(first: _Side, second: _Side) -> tuple[Same, tuple[str, ...]]:
    """Whether the losses that both were given, step by step, agree."""
    before, after = ({row.step: row.loss for row in side.steps if row.loss is not None} for side in (first, second))
    common = sorted(before.keys() & after.keys())
    if not common:
        return "unknown", ()
    apart = [step for step in common if not _agree(before[step], after[step])]
    if not apart:
        return "same", (f"losses agree to {_SAME_LOSS:g} over {len(common)} steps",)
    step = apart[0]
    return "different", (
        f"losses differ from step {step} on: {before[step]:.6g} before, {after[step]:.6g} after: not the same result",
    )


def _agree(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=_SAME_LOSS, abs_tol=1e-6)


def _key(finding: Finding) -> tuple[str, str, str | None]:
    """What makes two findings the same: not the line, which moves with every edit, nor the folder of a copy."""
    return finding.rule, os.path.basename(finding.file or ""), finding.function


def _only_in(here: Diagnosis, there: Diagnosis) -> tuple[Finding, ...]:
    known = {_key(finding) for finding in there.findings}
    return tuple(f for f in here.findings if f.severity != "info" and _key(f) not in known)


# -- the answer


def _broken(
    differences: Sequence[Difference],
    counts: Sequence[Count],
    max_slowdown: float | None,
    max_more: Mapping[str, float],
) -> tuple[str, ...]:
    broken = []
    for name in (name for name in COUNTS if name in max_more):
        count = next((count for count in counts if count.name == name), None)
        allowed = f"at most {max_more[name]:g} more are allowed"
        if count is None:
            broken.append(f"{name} were not counted on both sides, {allowed}")
        elif count.after - count.before > max_more[name]:
            broken.append(f"{name}: {count.before:g} → {count.after:g}, {allowed}")
    if max_slowdown is not None:
        step = next((d for d in differences if d.kind == "step"), None)
        if step is None or not step.before_ns or step.after_ns is None:
            broken.append("no step was measured on both sides, so its budget cannot be kept")
        elif step.change != "no difference" and step.after_ns > step.before_ns * (1 + max_slowdown):
            broken.append(
                f"the step is {change(step.before_ns, step.after_ns)}, at most +{max_slowdown:.3g} is allowed"
            )
    return tuple(broken)


def _notes(first: _Side, second: _Side, workload: Same) -> tuple[str, ...]:
    notes = []
    if first.diagnosis.figures.kernel_profiles is not None or second.diagnosis.figures.kernel_profiles is not None:
        notes.append("ncu runs each kernel alone, with clocks held: times of launches, not of a training step")
    elif first.diagnosis.step is None or second.diagnosis.step is None:
        notes.append("one side marks no steps: times per step cannot be compared")
    elif not (first.steps and second.steps):
        notes.append("one side holds no single steps: its noise is unknown, and no difference is tested")
    else:
        notes.append("tested against the noise between steps; to see the noise between launches, repeat a run")
    if workload == "different":
        notes.append("not the same work: times are set side by side, but say little about which code is better")
    notes += [
        f"{side.diagnosis.source} is still being recorded"
        for side in (first, second)
        if side.rank is not None and side.rank.ending is None
    ]
    return tuple(notes)


def _verdict(differences: Sequence[Difference]) -> str:
    step = next((difference for difference in differences if difference.kind == "step"), None)
    if step is None or step.before_ns is None or step.after_ns is None:
        return "The two cannot be compared: no step was measured on both sides."
    times = f"{ms(step.before_ns)} before, {ms(step.after_ns)} after"
    changed = change(step.before_ns, step.after_ns)
    if step.change == "no difference":
        return f"No difference: a step took {times}, which is within the noise of the steps."
    if step.change == "not tested":
        return f"A step took {times} ({changed}); whether that is more than noise was not tested."
    return f"A step is {step.change}: {times} ({changed})."
