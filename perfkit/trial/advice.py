"""Which changes answer the findings of a diagnosis, and what those that need no run would save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from perfkit._format import share_of
from perfkit.diagnosis import Diagnosis
from perfkit.errors import UsageError
from perfkit.findings import Finding
from perfkit.run.records import Rank, TriedChange, TriedOutcome
from perfkit.trial.catalog import Change, ChosenChange, find_changes, parse_changes


class Candidate(NamedTuple):
    """A change to try, the findings that it answers, and what those estimate that it saves, as shares of a step."""

    chosen: ChosenChange
    rules: tuple[str, ...] = ()
    predicted: tuple[float, float] | None = None


class Advice(NamedTuple):
    """What to try, and what is known without a run: computed, or done by the program already."""

    candidates: tuple[Candidate, ...]
    settled: tuple[TriedChange, ...] = ()


def advice_of(diagnosis: Diagnosis, wanted: str | Sequence[str], rank: Rank | None = None) -> Advice:
    """Choose the changes to try.

    Args:
        diagnosis: Of a run of the program.
        wanted: "advised" for those that answer its findings, "all" for the whole catalogue without upper bounds, or
            names and values: ``["tf32", "workers=0,2"]``.
        rank: What the run has recorded of the program, where it is known: what the program does already is not tried.

    Raises:
        UsageError: no change has such a name or value, or none answers a finding.
    """
    if wanted == "advised":
        chosen = list(_answering(diagnosis.findings))
        if not chosen:
            rules = ", ".join(dict.fromkeys(one.rule for one in diagnosis.findings)) or "nothing"
            raise UsageError(
                f"no change of perfkit's answers what was found ({rules}): name changes with --only, or try --all; "
                "perfkit explain changes lists them"
            )
    elif wanted == "all":
        usable = (change for change in find_changes().values() if change.kind in ("exact", "numeric", "computed"))
        chosen = list(_values(usable))
    else:
        chosen = parse_changes([wanted] if isinstance(wanted, str) else wanted)
        if not chosen:
            raise UsageError("changes must name at least one change, as in workers=2,4; got none")
    candidates, settled = [], []
    for one in dict.fromkeys(chosen):
        candidate = _candidate(one, diagnosis)
        if one.change.kind == "computed":
            settled.append(_computed(candidate, diagnosis))
        elif rank is not None and (reason := one.change.needless(rank, one.value)) is not None:
            settled.append(_settled(candidate, "no-effect", f"no effect: {reason}"))
        else:
            candidates.append(candidate)
    return Advice(tuple(candidates), tuple(settled))


def _answering(findings: Iterable[Finding]) -> Iterator[ChosenChange]:
    """The changes that answer findings, in their order: what costs most is tried first."""
    for finding in findings:
        if finding.severity != "info":
            yield from _values(change for change in find_changes().values() if finding.rule in change.answers)


def _values(changes: Iterable[Change]) -> Iterator[ChosenChange]:
    for change in changes:
        for value in change.suggested() if change.parse is not None else (None,):
            yield ChosenChange(change, value)


def _candidate(chosen: ChosenChange, diagnosis: Diagnosis) -> Candidate:
    answered = [one for one in diagnosis.findings if one.rule in chosen.change.answers]
    wall_ns = diagnosis.figures.wall_ns
    estimates = [one for one in answered if one.saving_high_ns is not None] if wall_ns else []
    predicted = None
    if estimates and wall_ns:
        low_ns = sum(one.saving_low_ns or 0 for one in estimates)
        high_ns = sum(one.saving_high_ns or 0 for one in estimates)
        predicted = min(1.0, low_ns / wall_ns), min(1.0, high_ns / wall_ns)
    return Candidate(chosen, tuple(dict.fromkeys(one.rule for one in answered)), predicted)


def _computed(candidate: Candidate, diagnosis: Diagnosis) -> TriedChange:
    """What doing something more rarely saves: the rest of its cost, in the steps as in the run."""
    change, value = candidate.chosen
    wall_ns = diagnosis.figures.wall_ns
    costs = [one.cost_ns for one in diagnosis.findings if one.rule in change.answers and one.cost_ns is not None]
    remaining = change.remaining(value) if change.remaining is not None else 1.0
    saving = (1 - remaining) * sum(costs) / wall_ns if wall_ns and costs else None
    sentence = (
        "the recording gives no cost that it would save"
        if saving is None
        else f"saves {share_of(saving)}, computed from the cost"
    )
    outcome: TriedOutcome = "not-tried" if saving is None else "computed"
    return msgspec.structs.replace(_settled(candidate, outcome, sentence), saving=saving)


def _settled(candidate: Candidate, outcome: TriedOutcome, sentence: str) -> TriedChange:
    return TriedChange(
        names=(str(candidate.chosen),),
        rules=candidate.rules,
        kind=candidate.chosen.change.kind,
        outcome=outcome,
        sentence=sentence,
        predicted=candidate.predicted,
        lines=candidate.chosen.lines,
    )
