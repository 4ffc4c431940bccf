"""Findings claim rows of the ledger: nothing is paid for twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from perfkit._location import Location
from perfkit.findings import Finding
from perfkit.ledger.ledger import Claim, ClaimedLedger, Ledger
from perfkit.ledger.rows import LedgerRow, Selector, apportion
from perfkit.ledger.step_budget import NEGLIGIBLE

#: A finding that keeps less than this share of its cost, because others claimed its rows, is about the same time as
#: the one that claimed most of them (a plain majority).
_SAME_TIME = 0.5

_Test = Callable[[LedgerRow], bool]


def claim(
    ledger: Ledger,
    findings: Sequence[Finding],
    selectors: Mapping[str, Sequence[Selector] | None],
    rest: Collection[str] = (),
) -> tuple[ClaimedLedger, list[Finding]]:
    """What the findings claim of the ledger, and the findings with what is left for each.

    Findings claim in the order of what their correction saves. A finding that explains another one's cost claims for
    both: those that follow claim nothing. Where others have claimed a part of a finding's rows, its cost and saving
    shrink to the rest; where they have claimed most of it, it follows the one that claimed most.

    Args:
        ledger: The step.
        findings: Of all rules, in any order.
        selectors: The rows that the findings of a rule may claim, by the rule's id: None for any, empty for none. Rows
            at the line of a finding come first, then those in its function, then the others by selector. Where these
            are less than its cost (the recording could not place all time), the rest may come from any row.
        rest: The rules whose findings claim what those of all others leave.
    """
    accounts = _Accounts(ledger)
    results = [*findings]
    for at in sorted(range(len(findings)), key=lambda at: (findings[at].rule in rest, -expected_saving(findings[at]))):
        finding = findings[at]
        wanted = selectors.get(finding.rule)
        if finding.quantified and finding.follows is None and wanted != ():
            results[at] = _pay(accounts, finding, wanted or ())
    unquantified = tuple(one.rule for one in findings if one.severity != "info" and one.cost_ns is None)
    optional = (
        one.saving_high_ns or one.cost_ns or 0
        for one in findings
        # What is of the mean step, with its rare long ones, is not of this step's time.
        if one.severity == "info" and one.follows is None and (one.of_ns or 0) <= ledger.wall_ns
    )
    claimed = ClaimedLedger(
        ledger=ledger,
        claims=tuple(accounts.claims),
        unquantified=unquantified,
        optional_ns=max(optional, default=0),
    )
    return claimed, results


def expected_saving(finding: Finding) -> float:
    """The middle of a finding's saving in ns per step, its cost where none is known, 0 without either."""
    if finding.saving_low_ns is not None and finding.saving_high_ns is not None:
        return (finding.saving_low_ns + finding.saving_high_ns) / 2
    return float(finding.cost_ns or 0)


class _Accounts:
    """The time of each row that is not claimed yet."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.left = [row.ns for row in ledger.rows]
        self.claims: list[Claim] = []

    def take(self, rows: Sequence[int], ns: int, rule: str) -> int:
        """Claim up to ``ns`` of these rows, in proportion to what each has left; returns what was claimed."""
        left = [self.left[row] for row in rows]
        taken = min(ns, sum(left))
        for row, part in zip(rows, apportion(taken, left), strict=True):
            if part:
                self.left[row] -= part
                self.claims.append(Claim(row, rule, part))
        return taken

    def owner_of(self, rows: Sequence[int], rule: str) -> str | None:
        """The rule that claimed most of these rows, other than this one."""
        sums: dict[str, int] = {}
        wanted = set(rows)
        for one in self.claims:
            if one.row in wanted and one.rule != rule:
                sums[one.rule] = sums.get(one.rule, 0) + one.ns
        return max(sums, key=lambda name: sums[name], default=None)


def _pay(accounts: _Accounts, finding: Finding, selectors: Sequence[Selector]) -> Finding:
    """Claim the cost of one finding; returns it with what was left for it."""
    ledger, cost = accounts.ledger, min(finding.cost_ns or 0, accounts.ledger.wall_ns)
    own: list[int] = []
    paid = 0
    before = len(accounts.claims)
    for test in _tiers(finding, selectors):
        rows = [at for at, row in enumerate(ledger.rows) if at not in own and test(row)]
        own += rows
        paid += accounts.take(rows, cost - paid, finding.rule)
    # What the recording could not place may be in any row; what was placed and claimed by others may not. A cost is
    # wall time: a part of it is that of other programs, which lengthen all parts of the step.
    others = [at for at, row in enumerate(ledger.rows) if row.owner == "other programs" and at not in own]
    placed = sum(ledger.rows[at].ns for at in own)
    if (missing := min(cost - paid, cost - placed)) > 0:
        paid += accounts.take(others, missing, finding.rule)
        own += others
    if (missing := min(missing, cost - paid)) > 0:
        rest = [at for at, row in enumerate(ledger.rows) if at not in own and _may_hold(row, ledger, not placed)]
        paid += accounts.take(rest, missing, finding.rule)
    if paid >= cost or not finding.cost_ns:
        return finding
    other = accounts.owner_of(own, finding.rule)
    if other is not None and (paid < _SAME_TIME * cost or paid < NEGLIGIBLE * ledger.wall_ns):
        for one in accounts.claims[before:]:
            accounts.left[one.row] += one.ns
        del accounts.claims[before:]
        return msgspec.structs.replace(finding, follows=other)
    return _shrunk(finding, paid / finding.cost_ns)


def _may_hold(row: LedgerRow, ledger: Ledger, nothing_placed: bool) -> bool:
    """Whether a row may hold time of a finding that the recording could not place.

    A device's work is placed: what the host does costs no more than the device is idle, and idle time has its cause.
    """
    return ledger.basis == "training thread" or (nothing_placed and row.owner in ("idle", "unrecorded"))


def _tiers(finding: Finding, selectors: Sequence[Selector]) -> Iterator[_Test]:
    """Tests of rows, from those that are surely this finding's to those that may be."""

    def selected(row: LedgerRow) -> bool:
        return any(selector.matches(row) for selector in selectors)

    spent = finding.spent
    if spent is not None:
        at_line, in_function = _at_line(spent), _in_function(spent)
        if selectors:
            yield lambda row: selected(row) and at_line(row)
            yield lambda row: selected(row) and in_function(row)
        else:
            yield at_line
            yield in_function
    for selector in selectors:
        yield selector.matches


def _at_line(spent: Location) -> _Test:
    return lambda row: row.at is not None and (row.at.file, row.at.line) == (spent.file, spent.line)


def _in_function(spent: Location) -> _Test:
    return lambda row: (
        row.at is not None
        and spent.function is not None
        and (row.at.file, row.at.function) == (spent.file, spent.function)
    )


def _shrunk(finding: Finding, factor: float) -> Finding:
    """The finding with this part of its cost, and its saving cut to match.

    A replay has already left out what a device hides of the cost: its saving shrinks only where it is more than what is
    left, both ends alike, since an interval that is cut at one end would be too narrow.
    """
    cost_ns, high_ns = finding.cost_ns or 0, finding.saving_high_ns
    of_saving = min(1.0, factor * cost_ns / high_ns) if finding.what_if is not None and high_ns else factor

    def part(ns: int | None, factor: float) -> int | None:
        return None if ns is None else round(ns * factor)

    return msgspec.structs.replace(
        finding,
        cost_ns=part(finding.cost_ns, factor),
        saving_low_ns=part(finding.saving_low_ns, of_saving),
        saving_high_ns=part(finding.saving_high_ns, of_saving),
    )
