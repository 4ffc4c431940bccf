"""What changed between two runs, whether it is more than noise, and whether the two did the same work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from perfkit._format import ms, relative_change
from perfkit.comparison.budgets import broken_budgets, check_budgets
from perfkit.comparison.differences import count_differences, owner_differences, row_differences, step_differences
from perfkit.comparison.kernel_profiles import profile_changes, profile_verdict
from perfkit.comparison.results import Comparison, Difference, Same
from perfkit.comparison.sides import Side, Source, side_of
from perfkit.comparison.workload import compare_losses, work_changes
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding

__all__ = ["Comparison", "compare"]


def compare(
    before: Source,
    after: Source,
    *,
    max_slowdown: float | None = None,
    max_more: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare two runs, traces, reports of ncu, or diagnoses: what changed, and which findings only one of them has.

    Differences of step and phases are tested by a bootstrap over the single steps, which run folders hold; traces and
    `Diagnosis` objects hold means only, and their differences are "not tested".

    Args:
        before: A run folder, a trace, a report of ncu, or a diagnosis.
        after: What to compare with it.
        max_slowdown: Budget for the step: the share by which it may be slower (0.03 = 3%). Where noise can be tested,
            only a difference beyond it exceeds the budget.
        max_more: Budgets for counts: "syncs", "recompiles", "graph breaks", "launches", "ops" -> how many more are
            allowed. A count that one side did not record exceeds its budget, because it cannot be checked.

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
    differences += [*owner_differences(first, second), *row_differences(first, second)]
    profiles = profile_changes(first, second)
    return Comparison(
        before=first.source,
        after=second.source,
        verdict=profile_verdict(first, second, profiles) or _verdict(differences),
        differences=tuple(differences),
        kernel_profiles=profiles,
        counts=counts,
        gone=_only_in(first, second),
        new=_only_in(second, first),
        workload=workload,
        changed=changed,
        result=result,
        broken=broken_budgets(differences, counts, max_slowdown, max_more or {}),
        notes=(*_notes(*sides, workload), *losses),
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


def _notes(first: Side, second: Side, workload: Same) -> tuple[str, ...]:
    notes = []
    if first.diagnosis.figures.kernel_profiles is not None or second.diagnosis.figures.kernel_profiles is not None:
        notes.append("ncu runs each kernel alone at fixed clocks: these are times of launches, not of a training step")
    elif first.diagnosis.step is None or second.diagnosis.step is None:
        notes.append("one side marks no steps: times per step cannot be compared")
    elif not (first.steps and second.steps):
        notes.append("one side holds no single steps: its noise is unknown, so no difference was tested")
    else:
        notes.append("tested against the noise between steps; repeat a run to see the noise between launches")
    if workload == "different":
        notes.append("not the same work: the times do not show which code is faster")
    notes += [side.note for side in (first, second) if side.note is not None]
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
    changed = relative_change(step.before_ns, step.after_ns)
    if step.change == "no difference":
        return f"No difference: a step took {times}, which is within the noise of the steps."
    if step.change == "not tested":
        return f"A step took {times} ({changed}); whether that is more than noise was not tested."
    return f"A step is {step.change}: {times} ({changed})."
