"""What changed between two runs, whether it is more than noise, and whether the two did the same work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from perfkit._format import ms, relative_change
from perfkit.comparison.budgets import broken_budgets, check_budgets
from perfkit.comparison.differences import count_differences, owner_differences, row_differences, step_differences
from perfkit.comparison.kernel_profiles import profile_changes, profile_verdict
from perfkit.comparison.memory import memory_differences
from perfkit.comparison.results import Comparison, Difference, Same
from perfkit.comparison.sides import Side, Source, side_of
from perfkit.comparison.workload import compare_losses, not_alike, work_changes
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding

__all__ = ["Comparison", "compare"]

#: Steps of a trace from which on its differences are tested (`perfkit.measures.steps.difference_interval`).
_FEW = 3


def compare(
    before: Source,
    after: Source,
    *,
    max_slowdown: float | None = None,
    max_more: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare two runs, traces, reports of ncu, or diagnoses: what changed, and which findings only one of them has.

    Differences of step and phases are tested by a bootstrap over the single steps of run folders, everything else by
    Welch's interval over the steps of traces, from three on. `Diagnosis` objects hold means only: their differences,
    and those of recordings without steps, are "not tested".

    Args:
        before: A run folder, a trace, a report of ncu, or a diagnosis.
        after: What to compare with it.
        max_slowdown: Budget for the step: the share by which it may be slower (0.03 = 3%). Where noise can be tested,
            only a difference beyond it exceeds the budget.
        max_more: Budgets for counts: "syncs", "recompiles", "graph breaks", "launches", "ops" -> how many more are
            allowed; for "memory", the peak of a step, the share by which it may be larger (0.05 = 5%). What one side
            did not record exceeds its budget, because it cannot be checked.

    Raises:
        TraceError, RunError: a path is missing, or neither a run nor a trace.
        UsageError: a budget is negative, not finite, or for an unknown count.
    """
    check_budgets(max_slowdown, max_more or {})
    sides = side_of(before), side_of(after)
    first, second = (side.diagnosis for side in sides)
    differences = step_differences(*sides)
    counts = count_differences(first, second)
    changed, workload = work_changes(*sides)
    result, losses = compare_losses(*sides)
    step = next((one for one in differences if one.kind == "step"), None)
    differences += [*owner_differences(*sides, step), *row_differences(*sides)]
    profiles, gone = profile_changes(first, second), _only_in(first, second)
    memory = memory_differences(first, second)
    return Comparison(
        before=first.source,
        after=second.source,
        verdict=profile_verdict(first, second, profiles) or f"{not_alike(*sides)}{_verdict(differences)}",
        differences=tuple(differences),
        kernel_profiles=profiles,
        counts=counts,
        memory=memory,
        gone=gone,
        new=_only_in(second, first),
        workload=workload,
        changed=changed,
        result=result,
        broken=broken_budgets(differences, counts, memory, max_slowdown, max_more or {}),
        notes=(*notes_of(*sides, workload, gone, step), *losses),
    )


def _key(finding: Finding) -> tuple[str, str, str | None]:
    """What identifies a finding: not the line, which moves with every edit, nor the folder of a copy."""
    spent = finding.spent
    if spent is None:
        return finding.rule, "", finding.range
    return finding.rule, os.path.basename(spent.file), spent.function


def _only_in(here: Diagnosis, there: Diagnosis) -> tuple[Finding, ...]:
    known = {_key(finding) for finding in there.findings}
    return tuple(f for f in here.findings if f.severity != "info" and _key(f) not in known)


def notes_of(
    first: Side, second: Side, workload: Same, gone: Sequence[Finding], step: Difference | None
) -> tuple[str, ...]:
    """What a reader has to know about the two sides before believing the differences."""
    notes = []
    traces = first.samples is not None and second.samples is not None
    if first.diagnosis.figures.kernel_profiles is not None or second.diagnosis.figures.kernel_profiles is not None:
        notes.append("ncu runs each kernel alone at fixed clocks: these are times of launches, not of a training step")
    elif first.diagnosis.step is None and second.diagnosis.step is None:
        notes.append("neither side marks steps: the times are of the whole recordings, and were not tested")
    elif first.diagnosis.step is None or second.diagnosis.step is None:
        notes.append("one side marks no steps: times per step cannot be compared")
    elif first.steps and second.steps:
        notes.append("tested against the noise between steps; repeat a run to see the noise between launches")
    elif traces and min(side.samples.steps for side in (first, second) if side.samples) >= _FEW:
        notes.append("tested against the noise between the steps of the traces, which a recording slows down")
    else:
        notes.append("one side holds no single steps: its noise is unknown, so no difference was tested")
    if workload == "different":
        notes.append("not the same work: the times do not show which code is faster")
    if gone and step is not None and step.change == "no difference":
        rules = ", ".join(dict.fromkeys(finding.rule for finding in gone))
        notes.append(f"the step did not change although {rules} is no longer found: that is no measured saving")
    notes += [side.note for side in (first, second) if side.note is not None]
    notes += [
        f"{side.diagnosis.source} is still being recorded"
        for side in (first, second)
        if side.rank is not None and side.rank.ending is None
    ]
    return tuple(notes)


def _verdict(differences: Sequence[Difference]) -> str:
    step = next((difference for difference in differences if difference.kind in ("step", "recording")), None)
    if step is None or step.before_ns is None or step.after_ns is None:
        return "The two cannot be compared: no step was measured on both sides."
    times = f"{ms(step.before_ns)} before, {ms(step.after_ns)} after"
    changed = relative_change(step.before_ns, step.after_ns)
    if step.kind == "recording":
        return f"The recording took {times} ({changed}); whether that is noise was not tested: it has no steps."
    if step.change == "no difference":
        return f"No difference: a step took {times}, which is within the noise of the steps."
    if step.change == "not tested":
        return f"A step took {times} ({changed}); whether that is more than noise was not tested."
    return f"A step is {step.change}: {times} ({changed})."
