"""The verdict: at most five sentences on what a step takes, what to fix first, what that saves, and what is unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from perfkit._format import duration, ms, ms_range, percent, shown_target
from perfkit.findings import Finding, Outcome
from perfkit.ledger.ledger import ClaimedLedger
from perfkit.ledger.step_budget import CRITICAL, MAJORITY, NEGLIGIBLE, StepBudget
from perfkit.measures.results.completeness import Completeness
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.kernel_profiles import KernelProfiles, short_name
from perfkit.measures.results.loop import LoopTime
from perfkit.measures.results.measurements import Measurements, PlannedSteps, TraceFacts
from perfkit.measures.results.steps import MeanStep, Ranks, StepBreakdown, TypicalStep
from perfkit.rules._engine import find_rules
from perfkit.rules._settings import number
from perfkit.rules.verdicts.unexplained import shown_part
from perfkit.run.records import PHASES, Phase, Rank

#: What each phase is called in a sentence.
_PHASE_NAMES: dict[Phase, str] = {
    "data": "waiting for data",
    "transfer": "moving data to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "validation": "validation",
    "callbacks": "callbacks",
    "logging": "logging",
    "checkpoint": "checkpoints",
    "other": "outside the known phases",
}

#: What a device does, in a sentence -> the field of `DeviceTime` with its time.
_DEVICE_PARTS = {
    "compute kernels": "compute_ns",
    "communication that no compute hides": "exposed_communication_ns",
    "copies that no compute hides": "exposed_copy_ns",
    "an idle device": "idle_ns",
}

#: Standard deviations between the 10th and the 90th percentile of a normal distribution.
_P10_TO_P90 = 2.56


class Verdict(NamedTuple):
    """The verdict in words, and which of the four it is."""

    text: str
    outcome: Outcome


def verdict_of(
    findings: Sequence[Finding], found: Measurements, budget: StepBudget | None, ledger: ClaimedLedger | None
) -> Verdict:
    """The verdict on ordered findings."""
    profiles = found.get(KernelProfiles)
    causes = [finding for finding in findings if finding.follows is None and finding.severity != "info"]
    quantified = [finding for finding in causes if finding.quantified]
    outcome: Outcome = "findings"
    completeness = found.get(Completeness)
    if profiles is not None:
        parts = [_of_profiles(profiles, findings)]
    elif completeness is not None and completeness.fatal:
        # What was found in a part of what happened is listed, but no verdict.
        return Verdict(" ".join(one.message for one in findings if one.rule == "cannot-tell"), "cannot-tell")
    elif quantified and budget is not None:
        unknown = _unknown(ledger, unquantified=len(causes) - len(quantified))
        parts = [
            _joined(_largest_part(budget), _in_collectives(found)),
            _conditions(found, ledger),
            _fix_first(quantified, found, budget, ledger),
            unknown,
        ]
    else:
        verdicts = {rule.id: rule for rule in find_rules() if rule.is_verdict}
        own = [finding for finding in findings if finding.rule in verdicts]
        # A recording that shows nothing has no other verdict.
        own = [finding for finding in own if finding.rule == "cannot-tell"] or own
        outcome = next((verdicts[finding.rule].outcome for finding in own), "unexplained")
        parts = [finding.message for finding in own] or ["No rule found a problem that costs a measurable time."]
        if budget is not None and outcome == "healthy":
            parts.insert(0, _no_savings_above(findings, budget))
        parts += [_in_collectives(found), _conditions(found, ledger)]
    return Verdict(" ".join(part for part in parts if part), outcome)


def _other_programs(found: Measurements, ledger: ClaimedLedger | None) -> str:
    """How much of the step other programs took, where that is a quarter of it or more: times are then longer.

    On few cores these may be the workers of the program's own loaders.
    """
    if ledger is None or ledger.ledger.others_ns < CRITICAL * ledger.ledger.wall_ns:
        return ""
    share = percent(ledger.ledger.others_ns, ledger.ledger.wall_ns)
    rank = found.get(Rank)
    workers = max((loader.num_workers for loader in rank.loaders), default=0) if rank is not None else 0
    cores = number(rank, "cpu_affinity") or number(rank, "cpu_count")
    if cores is not None and workers and workers + (number(rank, "torch.num_threads") or 1) > cores:
        return (
            f"Other processes had the core for {share} of the step, the {workers} workers of its own DataLoader among "
            f"them: there are {cores} cores."
        )
    return f"Other programs had the core for {share} of the step: a quieter machine shows more."


def _conditions(found: Measurements, ledger: ClaimedLedger | None) -> str:
    """How much of the loop the step stands for, and what disturbed it: one sentence."""
    return _joined(_covered(found), _other_programs(found, ledger))


def _joined(first: str, second: str) -> str:
    """Two sentences as one; either may be empty."""
    if not (first and second):
        return first or second
    return f"{first.removesuffix('.')}; {second[0].lower()}{second[1:]}"


def _in_collectives(found: Measurements) -> str:
    """How many ranks train together, over which backend, and how much of the step is collectives; empty for one."""
    rank, facts, ranks = found.get(Rank), found.get(TraceFacts), found.get(Ranks)
    group = rank.process_group if rank is not None else None
    size = group.size if group is not None else facts.world_size if facts is not None else None
    backend = group.backend if group is not None else facts.backend if facts is not None else None
    if size is None or size < 2:
        return ""
    who = f"{size:,} ranks train over {backend}" if backend else f"{size:,} ranks train together"
    step = found.get(TypicalStep)
    if ranks is not None and ranks.blocked_ns is not None:
        transfer = percent(max(0, ranks.blocked_ns - ranks.waiting_ns), ranks.wall_ns)
        waiting = percent(ranks.waiting_ns, ranks.wall_ns)
        return f"{who}, with {transfer} of the step in collectives and {waiting} in waiting for the last rank."
    if step is not None and step.waited_ns is not None:
        return f"{who}, this one with {percent(step.waited_ns, step.wall_ns)} of the step in collectives."
    device = max(found.all(DeviceTime), key=lambda one: one.busy_ns, default=None)
    if device is not None and device.communication_ns:
        exposed = percent(device.exposed_communication_ns, device.window_ns)
        return f"{who}, with {exposed} of the step in collectives that no compute hides."
    return f"{who}, and how long they are in collectives was not recorded."


def _covered(found: Measurements) -> str:
    """How much of the loop the typical step covers, where other steps take a part that could be reported."""
    loop = found.get(LoopTime)
    return loop.sentence(NEGLIGIBLE) if loop is not None else ""


def _unknown(ledger: ClaimedLedger | None, *, unquantified: int) -> str:
    """What no finding claims, if it is a quarter of the step or more, and findings without a cost."""
    sentences = []
    parts = ledger.unexplained() if ledger is not None else []
    if ledger is not None and parts:
        wall_ns, rest_ns = ledger.ledger.wall_ns, ledger.unexplained_ns - ledger.ledger.others_ns
        largest = shown_part(parts[0], wall_ns)
        if parts[0].ns >= CRITICAL * wall_ns:
            sentences.append(f"Unexplained: {largest}")
        elif ledger.ledger.basis == "device" and rest_ns >= CRITICAL * wall_ns:
            sentences.append(f"Unexplained: {percent(rest_ns, wall_ns)}, the largest part {largest}")
    if unquantified:
        findings = "finding" if unquantified == 1 else "findings"
        sentences.append(f"{unquantified} {findings} could not be quantified on this machine")
    return f"{'; '.join(sentences)}." if sentences else ""


def _of_profiles(profiles: KernelProfiles, findings: Sequence[Finding]) -> str:
    """How many kernels were profiled, which one took most of the time, and how near it comes to its device's peaks."""
    shares: dict[str, float] = {}
    for row in profiles.rows:
        shares[row.name] = shares.get(row.name, 0.0) + (row.share or 0.0)
    name = max(shares, key=lambda name: shares[name])
    row = next(row for row in profiles.rows if row.name == name)
    total = f" of {ms(profiles.total_ns)} in total" if profiles.total_ns is not None else ""
    kernels = f"{len(shares):,} kernel{'s' if len(shares) > 1 else ''}"
    launches = f"{profiles.launches:,} launch{'es' if profiles.launches > 1 else ''}"
    largest = "most of the time" if profiles.total_ns is not None else "most launches"
    parts = {"compute": row.compute, "memory": row.memory, "DRAM": row.dram}
    peaks = ", ".join(f"{name} {percent(part, 1)}" for name, part in parts.items() if part is not None)
    sentence = (
        f"{kernels} in {launches}{total}, {largest} in {short_name(name)[:60]} ({percent(shares[name], 1)})"
        f"{f': {peaks} of peak' if peaks else ''}."
    )
    if findings:
        return sentence
    large = [row for row in profiles.rows if (row.share or 0.0) >= NEGLIGIBLE]
    if any(row.compute is None or row.memory is None for row in large):
        return f"{sentence} The report does not hold their throughput, so their efficiency is unknown."
    return (
        f"{sentence} No kernel with 5% or more of the time stalls on latency, spills registers, or underuses the DRAM."
    )


def _no_savings_above(findings: Sequence[Finding], budget: StepBudget) -> str:
    """The share of the step that could still be saved without being reported: the largest of three.

    The threshold of all rules; how well the step's length is known (two standard errors of its mean, with the deviation
    from its 10th and 90th percentile); and the largest saving of a finding that is reported as information.
    """
    above, reason = NEGLIGIBLE, ""
    step: StepBreakdown | None = budget.typical or budget.traced
    if step is not None and step.steps and step.wall_ns > 0:
        deviation_ns = (step.p90_ns - step.p10_ns) / _P10_TO_P90
        uncertainty = 2 * deviation_ns / math.sqrt(step.steps) / step.wall_ns
        if uncertainty > above:
            above, reason = uncertainty, "; steps vary by that much"
    for finding in findings:
        possible = (finding.saving_high_ns or 0) / budget.wall_ns
        if possible > above:
            above, reason = possible, f" ({finding.rule} may save that much)"
    return f"No savings above {percent(above, 1)} found{reason}."


def _largest_part(budget: StepBudget) -> str:
    """The length of the step and its largest part."""
    parts = _parts(budget)
    step = f"{budget.subject} {ms(budget.wall_ns)}"
    if not parts:
        return f"{step}."
    name = max(parts, key=lambda name: parts[name])
    size = "most of it" if parts[name] >= MAJORITY * budget.wall_ns else "the largest part"
    sentence = f"{step}, {size} {name} ({budget.percent(parts[name])})"
    device = budget.device
    if device is None or name in _DEVICE_PARTS:
        return f"{sentence}."
    return f"{sentence}; the device is idle {percent(device.idle_ns, device.window_ns)} of it."


def _parts(budget: StepBudget) -> dict[str, int]:
    step: StepBreakdown | None = budget.typical or budget.traced
    if step is not None:
        phases = {_PHASE_NAMES[phase]: ns for phase in PHASES if (ns := getattr(step.phases_ns, phase))}
        if set(phases) - {_PHASE_NAMES["other"]}:
            return phases
    device = budget.device
    if device is None:
        return {}
    return {name: budget.of_device(ns) for name, field in _DEVICE_PARTS.items() if (ns := getattr(device, field))}


def _fix_first(
    quantified: Sequence[Finding], found: Measurements, budget: StepBudget, ledger: ClaimedLedger | None
) -> str:
    first = quantified[0]
    low_ns, high_ns = first.saving_low_ns or 0, first.saving_high_ns or 0
    place = f" at {target}" if (target := shown_target(first)) else ""
    per = "/step" if budget.per == "step" else ""
    # A cost that comes in a few steps is a part of the mean step, which is what the whole loop takes per step.
    whole_ns = max(budget.wall_ns, budget.mean.wall_ns) if budget.mean is not None else budget.wall_ns
    sentence = (
        f"Fix {first.rule}{place} first: saves {ms_range(low_ns, high_ns)}{per} ({percent(high_ns, whole_ns)} at most)"
        f"{_over_the_run(first, found)}"
    )
    if len(quantified) == 1:
        return f"{sentence}."
    # Each has claimed time of its own, and what runs at the limit of this machine stays.
    stays_ns = ledger.at_limit_ns if ledger is not None else 0
    total_ns = min(whole_ns - stays_ns, sum(finding.saving_high_ns or 0 for finding in quantified))
    together = "both" if len(quantified) == 2 else f"all {len(quantified)}"
    return f"{sentence}; {together} together save up to {ms(total_ns)}{per}."


def _over_the_run(first: Finding, found: Measurements) -> str:
    """The same over the run, where its length is known and the step is one outside windows."""
    planned, typical = found.get(PlannedSteps), found.get(TypicalStep)
    if planned is None or typical is None:
        return ""
    # The mean of all steps, because those with a validation or a checkpoint in them are part of the run.
    step_ns = (found.get(MeanStep) or typical).wall_ns
    saving_ns = min(first.saving_high_ns or 0, step_ns) * planned.count
    total_ns = step_ns * planned.count
    return f", over the planned {planned.count:,} steps up to {duration(saving_ns)} of {duration(total_ns)}"
