"""The ledger as a bar and a table: where the step goes, by owner and by row."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit._format import ms, shown_location
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.ledger.ledger import ClaimedLedger, RowAccount
from perfkit.ledger.ledger_text import account_line, rules_of_rows, shown_name, shown_rules
from perfkit.ledger.rows import Owner
from perfkit.reports.figures.data import Excerpt, LedgerFigure, OwnerFigure
from perfkit.reports.figures.excerpts import Sources
from perfkit.reports.tables._table import Column, Table

#: Rows of the table, the longest ones: more than any step has in which a person finds something.
_ROWS = 300
#: What accounts for an owner's time.
_PARTS = ("claimed_ns", "at_limit_ns", "overhead_ns", "unexplained_ns")
#: The kind of each owner, which decides its colour: that of the phase or of the device work it resembles.
_KINDS: dict[Owner, str] = {
    "computing": "compute",
    "op overhead": "op",
    "copies": "api",
    "communication": "communication",
    "waiting for ranks": "logging",
    "idle": "idle",
    "data": "data",
    "python": "python",
    "waiting": "idle",
    "collection": "range",
    "callbacks": "callbacks",
    "logging": "logging",
    "checkpoint": "checkpoint",
    "validation": "validation",
    "other programs": "other",
    "unrecorded": "unknown",
}
_COLUMNS = (
    Column("what"),
    Column("owner"),
    Column("line", "place"),
    Column("time", "ns"),
    Column("share", "share"),
    Column("of limit", "share"),
    Column("count", "number"),
    Column("claimed by"),
)


def ledger_of(diagnosis: Diagnosis, sources: Sources) -> LedgerFigure | None:
    """The ledger; None where there is none, or the recording is incomplete."""
    claimed = diagnosis.shown_ledger
    if claimed is None:
        return None
    accounts, ledger = claimed.accounts(), claimed.ledger
    shown = accounts[:_ROWS]
    places: dict[Location, int] = {}
    excerpts: list[Excerpt] = []
    for at in (account.row.at for account in shown):
        if at is not None and at.line is not None and at not in places:
            places[at] = len(excerpts)
            excerpts.append(sources.excerpt(at.file, at.line))
    return LedgerFigure(
        summary=account_line(claimed),
        wall_ns=ledger.wall_ns,
        owners=_owners(accounts),
        rows=_rows(claimed, accounts),
        excerpts=tuple(excerpts),
        excerpt_of_row=tuple(places.get(account.row.at, -1) if account.row.at else -1 for account in shown),
    )


def _rows(claimed: ClaimedLedger, accounts: Sequence[RowAccount]) -> Table:
    """The longest rows, without empty columns."""
    ledger, rules = claimed.ledger, rules_of_rows(claimed)
    cells = [_cells(account, rules[at], ledger.wall_ns) for at, account in enumerate(accounts[:_ROWS])]
    kept = [at for at in range(len(_COLUMNS)) if any(row[at] is not None for row in cells)]
    per = "Per step" if ledger.per == "step" else f"Of the {ledger.per}"
    limits = f"Limits: {ledger.limits}." if ledger.limits is not None else f"Limits unknown: {ledger.unknown}."
    rest_ns = sum(account.row.ns for account in accounts[_ROWS:])
    rest = f" {len(accounts) - _ROWS:,} shorter rows take {ms(rest_ns)} together." if rest_ns else ""
    return Table(
        id="ledger",
        title="Rows",
        columns=tuple(_COLUMNS[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in cells),
        note=f"{per}. {limits}{rest}",
    )


def _owners(accounts: Sequence[RowAccount]) -> tuple[OwnerFigure, ...]:
    """The parts of each owner over all rows, longest first."""
    sums: dict[Owner, list[int]] = {}
    for account in accounts:
        parts = sums.setdefault(account.row.owner, [0] * len(_PARTS))
        for at, part in enumerate(_PARTS):
            parts[at] += getattr(account, part)
    return tuple(
        OwnerFigure(name=owner, kind=_KINDS[owner], **dict(zip(_PARTS, parts, strict=True)))
        for owner, parts in sorted(sums.items(), key=lambda item: -sum(item[1]))
    )


def _cells(account: RowAccount, rules: dict[str, int], wall_ns: int) -> tuple[int | float | str | None, ...]:
    row = account.row
    return (
        shown_name(row),
        row.owner,
        shown_location(row.at) if row.at is not None else None,
        row.ns,
        row.ns / wall_ns,
        row.limit_ns / row.ns if row.limit_ns is not None else None,
        row.count,
        shown_rules(row, rules) or None,
    )
