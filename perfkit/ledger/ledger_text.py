"""The ledger as text: one line, and tables of its rows; the same in every report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from perfkit._format import ms, percent, shown_location
from perfkit.ledger.ledger import ClaimedLedger, RowAccount
from perfkit.ledger.rows import LedgerRow

#: Unexplained parts that are shown: as many as a person looks into.
_PARTS = 3
#: Rows below this share of the step are summed up: a hundred lines are the most that a person reads.
SMALL_ROW = 0.01
_NONE = "-"
#: What the names of nearly all ops begin with.
_PREFIX = re.compile(r"^(autograd::engine::evaluate_function: )?((torch::autograd|aten)::)?")


class TextTable(NamedTuple):
    """A heading and rows of cells; columns from number ``numbers`` on hold numbers."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: int


def account_line(ledger: ClaimedLedger) -> str:
    """The parts of the step, and how near its limit it runs.

    ``at the limit 41% · overhead of ops 9% · claimed by findings 38% · unexplained 12% · the 63% with a known limit``
    """
    shown = (f"{name} {percent(ns, ledger.ledger.wall_ns)}" for name, ns in account_parts(ledger).items())
    return " · ".join((*shown, nearness(ledger)))


def account_parts(ledger: ClaimedLedger) -> dict[str, int]:
    """The parts of the step by what accounts for them, in ns: they sum to the step."""
    # What findings claim of the time that other programs had the core is theirs.
    others_ns = sum(one.unexplained_ns for one in ledger.accounts() if one.row.owner == "other programs")
    parts = {
        "at the limit": ledger.at_limit_ns,
        **({"overhead of ops": overhead} if (overhead := ledger.overhead_ns) else {}),
        "claimed by findings": ledger.claimed_ns,
        "unexplained": ledger.unexplained_ns - others_ns,
    }
    return {**parts, "other programs": others_ns} if others_ns else parts


def nearness(ledger: ClaimedLedger) -> str:
    """How much of the step has a known limit, and how near to it that runs."""
    step = ledger.ledger
    known = [(row.ns, row.limit_ns) for row in step.rows if row.limit_ns is not None and row.bound != "overhead"]
    if not known:
        return "no limit is known"
    ns, limit_ns = sum(ns for ns, _ in known), sum(limit_ns for _, limit_ns in known)
    what = "device" if step.basis == "device" else "machine"
    speed = f"{percent(limit_ns, ns)} of what this {what} can do"
    return f"the {percent(ns, step.wall_ns)} with a known limit runs at {speed}"


def parts_table(ledger: ClaimedLedger) -> TextTable:
    """The largest unexplained parts."""
    wall_ns = ledger.ledger.wall_ns
    rows = [
        (
            part.name,
            shown_location(part.at) if part.at is not None else _NONE,
            ms(part.ns),
            percent(part.ns, wall_ns),
            percent(part.limit_share, 1) if part.limit_share is not None else _NONE,
        )
        for part in ledger.unexplained()[:_PARTS]
    ]
    return TextTable(("unexplained", "place", _time(ledger), "share", "of limit"), rows, 2)


def rows_table(ledger: ClaimedLedger, above: float = SMALL_ROW) -> TextTable:
    """The rows that take at least this share of the step, longest first, and one row for all others."""
    accounts, rules, wall_ns = ledger.accounts(), rules_of_rows(ledger), ledger.ledger.wall_ns
    shown = sum(account.row.ns >= above * wall_ns for account in accounts)  # they are in the order of their length
    rows = [_cells(account, rules[at], wall_ns) for at, account in enumerate(accounts[:shown])]
    if rest := accounts[shown:]:
        ns = sum(account.row.ns for account in rest)
        rows.append((f"{len(rest):,} others", _NONE, _NONE, _NONE, ms(ns), percent(ns, wall_ns), _NONE))
    table = TextTable(("owner", "what", "place", "claimed by", _time(ledger), "share", "of limit"), rows, 4)
    return table if ledger.claims else _without_column(table, 3)


def _without_column(table: TextTable, column: int) -> TextTable:
    rows = [(*row[:column], *row[column + 1 :]) for row in (table.head, *table.rows)]
    return TextTable(rows[0], rows[1:], table.numbers - 1)


def rules_of_rows(ledger: ClaimedLedger) -> list[dict[str, int]]:
    """For each row the time that the findings of each rule claim of it, in ns."""
    rules: list[dict[str, int]] = [{} for _ in ledger.ledger.rows]
    for claim in ledger.claims:
        rules[claim.row][claim.rule] = rules[claim.row].get(claim.rule, 0) + claim.ns
    return rules


def shown_rules(row: LedgerRow, rules: dict[str, int]) -> str:
    """Which findings claim a row: ``sync-in-step``, ``input-bound 40%`` for a part of it; empty where none does."""
    return ", ".join(rule if ns == row.ns else f"{rule} {percent(ns, row.ns)}" for rule, ns in rules.items())


def shown_name(row: LedgerRow) -> str:
    """The name of a row, with its phase: ``mm in backward``."""
    name = _PREFIX.sub("", row.name)
    return name if row.phase in (None, name) else f"{name} in {row.phase}"


def _cells(account: RowAccount, rules: dict[str, int], wall_ns: int) -> tuple[str, ...]:
    row = account.row
    return (
        row.owner,
        shown_name(row),
        shown_location(row.at) if row.at is not None else _NONE,
        shown_rules(row, rules) or _NONE,
        ms(row.ns),
        percent(row.ns, wall_ns),
        percent(row.limit_ns, row.ns) if row.limit_ns is not None else _NONE,
    )


def _time(ledger: ClaimedLedger) -> str:
    return "per step" if ledger.ledger.per == "step" else "time"
