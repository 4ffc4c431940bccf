"""What the corrections of findings save on a device, by replay: a problem's own time is not what removing it saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from perfkit._format import ms
from perfkit.errors import UsageError
from perfkit.findings import Finding
from perfkit.ledger.step_budget import StepBudget
from perfkit.measures.results.completeness import Completeness
from perfkit.measures.results.measurements import Measurements
from perfkit.replay._answering import Recording, predicted, recording_of
from perfkit.replay.results import Change
from perfkit.replay.transforms import find_transforms

#: Events of a trace above which nothing is replayed for a verdict: two millions take some seconds.
MOST_EVENTS = 2_000_000
#: A replay that saves less than this share of a cost contradicts what the rule measured, mostly idle time of a device:
#: the host then waits for something that the trace does not show, and the rule's range stays. Chosen.
_CONTRADICTS = 0.1


class ReplayedSavings(NamedTuple):
    """The findings, and a sentence for each reason why a saving is the rule's and not a replay's."""

    findings: list[Finding]
    notes: list[str]


class _Saving(NamedTuple):
    """What a change saves, ns per step: where the usual remains, and at most; and the costs that it removes."""

    low_ns: float
    high_ns: float
    costs_ns: int


def with_replayed_savings(
    findings: Sequence[Finding], changes: Sequence[Change | None], found: Measurements
) -> ReplayedSavings:
    """The findings with the savings of a replay, where one predicts their correction.

    The two ends are those of the change: all that it can save, and what it saves where the usual remains; the low end
    is at most the rule's, which knows what is left of the cost. Findings that one change corrects share what it
    saves by their costs. None saves more than its cost. A saving stays the rule's where the trace has no device or no
    steps, where the replay cannot know, or where it saves next to nothing of the costs.

    Args:
        findings: Of all rules.
        changes: For each the change that is its correction, None where there is none.
        found: What was measured of the recording, and its trace.
    """
    pairs = [
        (one, change if one.quantified and one.saving_high_ns is not None else None)
        for one, change in zip(findings, changes, strict=True)
    ]
    wanted = {change: None for _, change in pairs if change is not None}
    budget = StepBudget.from_measurements(found)
    if not wanted or budget is None or found.trace is None or not found.trace.device_rows.size:
        return ReplayedSavings([*findings], [])
    if (unknown := _why_unknown(found)) is not None:
        return ReplayedSavings([*findings], [f"savings are estimated without a replay of the steps: {unknown}"])
    recorded = _recording(found, budget)
    if recorded is None:
        return ReplayedSavings([*findings], [])
    # One that another finding explains is about that one's time, and has no part of its own.
    costs = {
        change: sum(one.cost_ns or 0 for one, its in pairs if its == change and one.follows is None)
        for change in wanted
    }
    scale = budget.wall_ns / recorded.step_ns
    savings = {change: one for change in wanted if (one := _saving(recorded, change, costs[change], scale)) is not None}
    known = {change: one for change, one in savings.items() if one.high_ns >= _CONTRADICTS * one.costs_ns}
    notes = [
        f"{finding.rule} costs {ms(finding.cost_ns or 0)} and a replay without it saves {ms(savings[change].high_ns)}: "
        "the trace does not show what is waited for then, and its saving is estimated without a replay"
        for finding, change in pairs
        if change in savings and change not in known and finding.follows is None
    ]
    replayed = [one if change not in known else _replayed(one, change, known[change]) for one, change in pairs]
    return ReplayedSavings(replayed, notes)


def _why_unknown(found: Measurements) -> str | None:
    """Why a replay of the trace would not know what a change saves; None where it may."""
    trace, completeness = found.trace, found.get(Completeness)
    assert trace is not None  # the caller looked
    if len(trace) > MOST_EVENTS:
        return f"the trace has more than {MOST_EVENTS:,} events"
    if completeness is not None and completeness.fatal:
        return "the recording is incomplete"
    if trace.cut is not None:
        return f"the trace is cut: {trace.cut}"
    return None


def _recording(found: Measurements, budget: StepBudget) -> Recording | None:
    """The recording; None where nothing in it takes time, or no steps are marked."""
    assert found.trace is not None  # the caller looked
    if budget.per != "step":
        return None
    try:
        recorded = recording_of(found.trace, found.source, budget)
    except UsageError:
        return None
    return recorded if recorded.graph.steps.row.size else None


def _saving(recorded: Recording, change: Change, costs_ns: int, scale: float) -> _Saving | None:
    """What the change saves; None where the trace has nothing that it changes."""
    name, _ = change
    if not find_transforms()[name].applies(recorded.graph):
        return None
    try:
        then = predicted(recorded, [change])
    except UsageError:
        return None  # no op or range has the name
    now = recorded.step_ns
    return _Saving(max(0.0, now - then.high_ns) * scale, max(0.0, now - then.low_ns) * scale, costs_ns)


def _replayed(finding: Finding, change: Change, saving: _Saving) -> Finding:
    """The finding with its part of what the change saves."""
    cost = finding.cost_ns or 0
    part = cost / max(1, cost, saving.costs_ns)
    # What it saves beyond the cost is of others. An interval that is cut at one end only would be too narrow.
    part *= min(1.0, cost / max(1.0, part * saving.high_ns))
    name, argument = change
    return msgspec.structs.replace(
        finding,
        saving_low_ns=min(finding.saving_low_ns or 0, round(part * saving.low_ns)),
        saving_high_ns=min(cost, round(part * saving.high_ns)),
        what_if=find_transforms()[name].option(argument),
    )
