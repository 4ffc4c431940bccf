"""Finds the rules, gives each the measures that it asks for, and returns their findings.

A rule is a public module in a folder of `perfkit.rules`. The parameters of its ``check`` are its subscription: a
parameter of type ``T`` receives the measure of that type, ``tuple[T, ...]`` all of them. A rule is called when every
parameter without a default has a value. A type with a method ``from_measurements`` is derived from other measures.
A rule that asks for one measure of a device is called once for each device.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

import perfkit.rules
from perfkit._annotations import annotated_type
from perfkit._families import family_of, members
from perfkit.errors import UsageError
from perfkit.findings import Finding, Outcome
from perfkit.ledger.claims import claim
from perfkit.ledger.intervals import calibrated
from perfkit.ledger.ledger import ClaimedLedger, Ledger
from perfkit.ledger.rows import Selector
from perfkit.measures.results.completeness import Completeness
from perfkit.measures.results.device import DeviceTime
from perfkit.measures.results.measurements import Measurements
from perfkit.replay.results import Change
from perfkit.rules._devices import merge_findings
from perfkit.rules._ordering import in_order

#: The family of rules that run only where no problem could be quantified.
_VERDICTS = "verdicts"


class Need(NamedTuple):
    """One measure that a rule asks for; ``of_one_device`` where each device of a trace has one of its own."""

    name: str
    type: Any
    several: bool
    required: bool
    of_one_device: bool

    @property
    def available_from(self) -> str:
        """What has to be recorded for this measure to exist."""
        return str(getattr(self.type, "AVAILABLE_FROM", self.type.__name__))


class Rule(NamedTuple):
    """A rule as its module defines it.

    ``follows`` are the ids of the rules of whose findings this one's is a consequence, nearest first;
    ``follows_at_line`` and ``follows_in_function`` only where both are in one line, or one function. ``claims`` are the
    rows of the ledger that its findings may claim: None for any, empty for none (its cost comes in a few steps only,
    which the typical step leaves out); with ``claims_rest`` only what the findings of other rules leave of them,
    because its cause is a general one. ``outcome`` is what the verdict is where this rule gives it.
    ``what_if`` is the change of `perfkit.replay.transforms` that is the correction, with its argument, or by advice
    where the rule has several ("" for all others): on a device a replay then says what it saves.
    """

    id: str
    family: str
    explanation: str
    check: Callable[..., Iterable[Finding]]
    needs: tuple[Need, ...]
    follows: tuple[str, ...] = ()
    follows_at_line: tuple[str, ...] = ()
    follows_in_function: tuple[str, ...] = ()
    claims: tuple[Selector, ...] | None = None
    claims_rest: bool = False
    outcome: Outcome = "findings"
    what_if: Change | Mapping[str, Change | None] | None = None

    @classmethod
    def of(cls, module: ModuleType) -> Rule:
        """The rule that a module defines by ``ID``, ``check`` and its docstring."""
        return cls(
            module.ID,
            family_of(module),
            inspect.getdoc(module) or "",
            module.check,
            tuple(_needs_of(module.check)),
            tuple(getattr(module, "FOLLOWS", ())),
            tuple(getattr(module, "FOLLOWS_AT_LINE", ())),
            tuple(getattr(module, "FOLLOWS_IN_FUNCTION", ())),
            getattr(module, "CLAIMS", None),
            getattr(module, "CLAIMS_REST", False),
            getattr(module, "OUTCOME", "findings"),
            getattr(module, "WHAT_IF", None),
        )

    def correction(self, finding: Finding) -> Change | None:
        """The what-if that is the correction of one of its findings; None where there is none."""
        if isinstance(self.what_if, Mapping):
            return self.what_if.get(finding.advice, self.what_if.get(""))
        return self.what_if

    @property
    def is_verdict(self) -> bool:
        """Whether it runs only where no problem could be quantified."""
        return self.family == _VERDICTS

    def missing(self, found: Measurements) -> list[Need]:
        """The measures that it requires and that do not exist."""
        return [need for need in self.needs if need.required and not _values(need.type, found)]

    def run(self, found: Measurements) -> list[Finding]:
        """Its findings, on each device where it needs a measure of one; none where one that it requires is missing."""
        devices = found.all(DeviceTime) if any(need.of_one_device for need in self.needs) else ()
        if len(devices) < 2:
            return self._check(found)
        each = ((device, self._check(found.of_device(device.device))) for device in devices)
        return merge_findings(found, [(device, finding) for device, findings in each for finding in findings])

    def _check(self, found: Measurements) -> list[Finding]:
        if self.missing(found):
            return []
        arguments: dict[str, Any] = {}
        for need in self.needs:
            if values := _values(need.type, found):
                arguments[need.name] = values if need.several else values[0]
        return [msgspec.structs.replace(finding, rule=self.id) for finding in self.check(**arguments)]


class RuleNotAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was not called, and what has to be recorded so that it can be."""

    rule: str
    needs: tuple[str, ...]


class RuleResults(NamedTuple):
    """The findings of all rules with what they claim, the rules not asked, and a sentence for each that failed."""

    findings: list[Finding]
    ledger: ClaimedLedger | None
    not_asked: tuple[RuleNotAsked, ...]
    failed: list[str]


def _needs_of(check: Callable[..., Any]) -> Iterator[Need]:
    for name, parameter in inspect.signature(check).parameters.items():
        kind = annotated_type(check, name)
        if get_origin(kind) in (Union, UnionType):
            kind = next(one for one in get_args(kind) if one is not NoneType)
        several = get_origin(kind) is tuple
        required = parameter.default is inspect.Parameter.empty
        one_device = not several and annotated_type(kind, "device") in (int, DeviceTime)
        yield Need(name, get_args(kind)[0] if several else kind, several, required, one_device)


def _values(kind: Any, found: Measurements) -> tuple[Any, ...]:
    if not hasattr(kind, "from_measurements"):
        return found.all(kind)
    derived = found.derived(kind)
    return (derived,) if derived is not None else ()


@cache
def find_rules() -> tuple[Rule, ...]:
    """All rules, by family and id."""
    return tuple(map(Rule.of, members(perfkit.rules)))


def explain(rule_id: str) -> str:
    """What `perfkit explain` prints about a rule.

    Raises:
        UsageError: no rule has this id; the text names similar ones.
    """
    rules = {rule.id: rule for rule in find_rules()}
    if rule_id in rules:
        return f"{rule_id}: {rules[rule_id].explanation}"
    near = difflib.get_close_matches(rule_id, rules, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the rules are {', '.join(rules)}"
    raise UsageError(f"no rule is called {rule_id!r}: {hint}")


def run_rules(rules: Sequence[Rule], found: Measurements, *, verdicts: bool = True) -> RuleResults:
    """Run rules over measurements.

    The verdicts among them only where no problem could be quantified; on an incomplete recording only those that ask
    whether it is complete.
    """
    findings: list[Finding] = []
    failed: list[str] = []

    def run(which: Iterable[Rule]) -> None:
        for rule in which:
            try:
                findings.extend(rule.run(found))
            except Exception as error:  # noqa: BLE001 - a defect of one rule must not take the others' findings with it
                failed.append(f"the rule {rule.id} failed and was skipped: {type(error).__name__}: {error}")

    run(rule for rule in rules if not rule.is_verdict)
    findings = _linked(findings, rules)
    if found.trace is not None:
        findings = _replayed(findings, rules, found, failed)
    claimed = None
    ledger = Ledger.from_measurements(found)
    if ledger is not None:
        selectors = {rule.id: rule.claims for rule in rules}
        claimed, findings = claim(ledger, findings, selectors, {rule.id for rule in rules if rule.claims_rest})
        found.replace(claimed)
    completeness = found.get(Completeness)
    if verdicts and completeness is not None and completeness.fatal:
        run(rule for rule in rules if rule.is_verdict and any(need.type is Completeness for need in rule.needs))
    elif verdicts and not any(finding.quantified for finding in findings):
        run(rule for rule in rules if rule.is_verdict)
    # Ordered before they are calibrated: a range that is clipped as it is widened has another middle.
    findings = in_order(findings)
    if ledger is not None:
        families = {rule.id: rule.family for rule in rules}
        # What a device does not do saves the time that it took and no more.
        most = ledger.wall_ns if ledger.basis == "training thread" else 0
        findings = [
            # A replay gives an interval, not a range of a rule's.
            calibrated(one, families[one.rule], max(most, one.cost_ns or 0)) if one.what_if is None else one
            for one in findings
        ]
    not_asked = tuple(
        RuleNotAsked(rule=rule.id, needs=tuple(dict.fromkeys(need.available_from for need in missing)))
        for rule in rules
        if (missing := rule.missing(found))
    )
    return RuleResults(findings, claimed, not_asked, failed)


def _replayed(findings: list[Finding], rules: Sequence[Rule], found: Measurements, failed: list[str]) -> list[Finding]:
    """The findings with the savings of a replay where one predicts them."""
    # It loads numpy, which only what reads traces has loaded.
    from perfkit.replay.finding_savings import with_replayed_savings

    by_id = {rule.id: rule for rule in rules}
    changes = [by_id[one.rule].correction(one) for one in findings]
    try:
        replayed = with_replayed_savings(findings, changes, found)
    except Exception as error:  # noqa: BLE001 - the rules' own savings are there
        failed.append(f"the replay of the steps failed, savings are estimated: {type(error).__name__}: {error}")
        return findings
    failed += replayed.notes
    return replayed.findings


def _linked(findings: list[Finding], rules: Sequence[Rule]) -> list[Finding]:
    """Mark each finding that another one explains: by its rule, or where both are at one line or in one function."""
    problems = [finding for finding in findings if finding.severity != "info"]
    quantified = {finding.rule for finding in problems if finding.cost_ns is not None}
    places = [(finding.rule, finding.spent) for finding in problems if finding.spent is not None]
    lines = {(rule, spent.file, spent.line) for rule, spent in places if spent.line is not None}
    functions = {(rule, spent.file, spent.function) for rule, spent in places if spent.function is not None}
    by_id = {rule.id: rule for rule in rules}
    linked = []
    for finding in findings:
        rule, spent = by_id[finding.rule], finding.spent
        causes = [cause for cause in rule.follows if cause in quantified]
        if spent is not None:
            # A line of a loop's body is also at the loop, which is then what to edit.
            both = (spent, *((finding.change,) if finding.change is not None else ()))
            at = {one.line for one in both if (one.file, one.function) == (spent.file, spent.function)}
            causes += [cause for cause in rule.follows_at_line if any((cause, spent.file, one) in lines for one in at)]
            causes += [cause for cause in rule.follows_in_function if (cause, spent.file, spent.function) in functions]
        linked.append(msgspec.structs.replace(finding, follows=causes[0]) if causes else finding)
    return linked
