"""What a table is defined by: its rows, its columns, and what has to be recorded for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from perfkit._location import Location
from perfkit.measures.results.measurements import Measurements, TraceFacts
from perfkit.reports.tables._table import Cell, Column, Table, Unit
from perfkit.run.reading import RunFolder
from perfkit.trace.columns import Trace

_Row = TypeVar("_Row")


class TableField(NamedTuple):
    """A column and its value of a row: the row's attribute of this name, or what a function returns for it."""

    heading: str
    unit: Unit
    value: str | Callable[[Any], Cell]

    def of(self, row: Any) -> Cell:
        cell: Cell = attrgetter(self.value)(row) if isinstance(self.value, str) else self.value(row)
        return cell


@dataclasses.dataclass(frozen=True)
class TableSource:
    """What tables are made of: the measures of a recording, its trace where rows are single events, and its run.

    ``trace`` is None for a page, whose figures have the longest rows only: there ``limited`` is True.
    """

    found: Measurements
    trace: Trace | None = None
    run: RunFolder | None = None
    limited: bool = False

    def rows(self, kind: type[_Row], holder: type[Any] | None = None, attribute: str = "rows") -> Sequence[_Row]:
        """The values of a type: those in the ``attribute`` of its holder, where the recording has one, else alone."""
        held = self.found.get(holder) if holder is not None else None
        rows: Sequence[_Row] = getattr(held, attribute) if held is not None else self.found.all(kind)
        return rows

    @property
    def steps(self) -> int:
        """The steps of the trace; 0 where it has none, or there is no trace."""
        facts = self.found.get(TraceFacts)
        return facts.steps if facts is not None else 0


def of_steps(source: TableSource) -> str:
    """What the numbers of a table are counted over, as ``Totals over 4 steps of the trace``, in a sentence."""
    if source.found.get(TraceFacts) is None:
        return ""
    n = source.steps
    return f"Totals over {n} step{'s' if n != 1 else ''} of the trace." if n else "Totals over the trace."


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableDefinition:
    """One table of `perfkit diagnose --table` and of the pages.

    ``rows`` returns its rows in their usual order; ``fields`` are its columns, the most important ones first, because a
    narrow terminal leaves out those at the end. ``needs`` is what to record where there are no rows. ``note`` is a
    sentence below the title. ``by`` are the same numbers in other groups, by the name of the group. ``on_page`` is
    False for tables of single events and of groups, which only commands print.
    """

    name: str
    title: str
    fields: Sequence[TableField]
    rows: Callable[[TableSource], Iterable[Any]]
    needs: str
    note: Callable[[TableSource], str] = of_steps
    by: Mapping[str, TableDefinition] = dataclasses.field(default_factory=dict)
    on_page: bool = True

    def make(self, source: TableSource) -> Table:
        """The table of a recording, without the columns that it has no value for."""
        rows = [tuple(field.of(row) for field in self.fields) for row in self.rows(source)]
        kept = [at for at in range(len(self.fields)) if any(row[at] is not None for row in rows)]
        note = self.note(source)
        return Table(
            id=self.name,
            title=self.title,
            columns=tuple(Column(self.fields[at].heading, self.fields[at].unit) for at in kept),
            rows=tuple(tuple(row[at] for at in kept) for row in rows),
            note=f"The {len(rows)} longest. {note}".strip() if source.limited and self.note is of_steps else note,
        )


def place(location: Location | None) -> str | None:
    """A line as a cell: ``/home/me/train.py:31``, or the file and its function where the line is not known."""
    if location is None:
        return None
    if location.line is not None:
        return f"{location.file}:{location.line}"
    return f"{location.file}: {location.function}" if location.function else location.file


def dimensions(size: Sequence[int] | None) -> str | None:
    """The size of a grid or a block: ``64 x 2 x 1``."""
    return None if size is None else " x ".join(str(one) for one in size)


def per_call(row: Any) -> int | None:
    """The mean time of one of its calls."""
    total = getattr(row, "total_ns", None)
    total = getattr(row, "host_ns", None) if total is None else total
    return round(total / row.count) if total is not None and row.count else None


def rounded(field: str) -> Callable[[Any], int | None]:
    """A time of a row that is a fraction, in whole ns."""

    def value(row: Any) -> int | None:
        ns = getattr(row, field)
        return None if ns is None else round(ns)

    return value


#: How long the events of one name take, beside their number and total.
SPREAD = (
    TableField("mean", "ns", per_call),
    TableField("median", "ns", "median_ns"),
    TableField("min", "ns", "min_ns"),
    TableField("max", "ns", "max_ns"),
    TableField("deviation", "ns", rounded("deviation_ns")),
)
#: The columns of a `NameTime`, without its name.
TIMES = (
    TableField("calls", "count", "count"),
    TableField("total", "ns", "total_ns"),
    TableField("share", "share", "share"),
    *SPREAD,
)
