"""A table on a terminal, in a pipe, as CSV and as JSON."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec
from rich.console import Console
from rich.text import Text

from perfkit._format import ms, rate, share_of, shown_path, size
from perfkit._text import escaped, escaped_json
from perfkit.errors import UsageError
from perfkit.ledger.ledger_text import TextTable
from perfkit.reports.console import print_line, print_text, table_lines
from perfkit.reports.tables import nearest
from perfkit.reports.tables._table import TEXTS, Cell, Column, Table, Unit

#: Version of a table's JSON.
SCHEMA = 1
#: Rows on a terminal: a screen. Everything else gets all of them.
SCREEN = 30
#: Cells that the first text gets at least (a kernel's name is told by its ends), and the others: a file and its line.
_MIN_NAME, _MIN_TEXT = 36, 24
_NONE = "-"


def arranged(table: Table, sort: str | None, limit: int | None) -> Table:
    """The first ``limit`` rows (None: all), sorted by a column: numbers from the largest, texts from the first.

    Raises:
        UsageError: there is no such column.
    """
    rows = table.rows
    if sort is not None:
        at = _column(table, sort)
        known = [row for row in rows if row[at] is not None]
        is_text = table.columns[at].unit in TEXTS
        rows = (
            *sorted(known, key=lambda row: row[at], reverse=not is_text),  # type: ignore[arg-type,return-value]  # one type in a column
            *(row for row in rows if row[at] is None),
        )
    return msgspec.structs.replace(table, rows=rows if limit is None else rows[:limit])


def _column(table: Table, name: str) -> int:
    """The number of the column of this heading, or of this name in CSV."""
    wanted = Column(name).key
    for at, column in enumerate(table.columns):
        if wanted in (Column(column.label).key, column.key):
            return at
    labels = [column.label for column in table.columns]
    raise UsageError(
        f"the table {table.id} has no column {name!r}{nearest(name, labels)}; its columns are {', '.join(labels)}"
    )


def write_csv(table: Table, file: TextIO) -> None:
    """Write a table with one line of headings; times in ns, shares from 0 to 1, nothing for what was not measured."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    for row in table.rows:
        writer.writerow([escaped(cell) if isinstance(cell, str) else cell for cell in row])


def write_table_json(table: Table, source: str, file: TextIO) -> None:
    """Write a table as an object with ``rows``: an object for each, by the columns' names; null for not measured."""
    keys = [column.key for column in table.columns]
    answer = {
        "schema": SCHEMA,
        "source": source,
        "table": table.id,
        "title": table.title,
        "note": table.note,
        "columns": [
            {"name": key, "label": column.label, "unit": column.unit}
            for key, column in zip(keys, table.columns, strict=True)
        ],
        "rows": [dict(zip(keys, row, strict=True)) for row in table.rows],
    }
    file.write(escaped_json(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n")


def print_rows(table: Table, of: int, console: Console) -> None:
    """Print a table: on a terminal the columns that fit into its width, else all of them without a cut.

    Args:
        table: The rows to print.
        of: How many rows the whole table has.
        console: Where to.
    """
    print_text(Text(f"{table.title}. {table.note}".strip(), style="dim"), console)
    if not console.is_terminal:
        for text in _whole_lines(table):
            console.print(text.rstrip(), soft_wrap=True)
        return
    shown = _fitting(table, console.width)
    columns = [table.columns[at] for at in shown]
    # Texts come first, whose middle can be left out.
    order = [at for at in shown if table.columns[at].unit in TEXTS]
    numbers = len(order)
    order += [at for at in shown if table.columns[at].unit not in TEXTS]
    head = tuple(table.columns[at].label for at in order)
    rows = [tuple(shown_cell(row[at], table.columns[at].unit) for at in order) for row in table.rows]
    for line in table_lines(TextTable(head, rows, numbers), console):
        print_line(line, console)
    rest = [column.label for column in table.columns if column not in columns]
    notes = [f"{of - len(table.rows):,} more rows: --limit {of}"] if of > len(table.rows) else []
    notes += [f"not shown at this width: {', '.join(rest)} (--csv has all)"] if rest else []
    for note in notes:
        print_text(Text(note, style="dim"), console)


def _fitting(table: Table, width: int) -> list[int]:
    """The columns that fit into a width, in their order; a text needs some of its cells only."""
    kept: list[int] = []
    used = -2
    for at, column in enumerate(table.columns):
        cells = [column.label, *(shown_cell(row[at], column.unit) for row in table.rows)]
        longest = max(map(len, cells))
        needed = 2 + (min(longest, _MIN_TEXT if kept else _MIN_NAME) if column.unit in TEXTS else longest)
        if kept and used + needed > width:
            continue
        kept.append(at)
        used += needed
    return kept


def _whole_lines(table: Table) -> list[str]:
    """Lines of all columns as wide as they need, for a pipe."""
    cells = [[column.label for column in table.columns]]
    cells += [[shown_cell(value, column.unit) for value, column in _pairs(row, table.columns)] for row in table.rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(table.columns))]
    return [
        "  ".join(
            f"{cell:<{width}}" if column.unit in TEXTS else f"{cell:>{width}}"
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        )
        for row in cells
    ]


def _pairs(row: Sequence[Cell], columns: Sequence[Column]) -> Any:
    return zip(row, columns, strict=True)


def shown_cell(cell: Cell, unit: Unit) -> str:
    """A cell as a person reads it; ``-`` for what was not measured."""
    if cell is None:
        return _NONE
    if isinstance(cell, str):
        return escaped(shown_path(cell) if unit == "place" else cell)
    if unit == "ns":
        return ms(cell)
    if unit == "share":
        return share_of(cell)
    if unit == "bytes":
        return f"-{size(-cell)}" if cell < 0 else size(cell)
    if unit == "count":
        return f"{cell:,}"
    return _scaled(cell) if unit == "flops" or abs(cell) >= 1e6 else rate(cell)


def _scaled(count: float) -> str:
    """A large count: ``12.4 T``, ``310 G``."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= factor:
            return f"{count / factor:.3g} {prefix}"
    return rate(count)
