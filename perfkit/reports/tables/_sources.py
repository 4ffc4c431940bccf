"""Where tables of the same kind get their rows: the tables of an nsys export, and measures over the time of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables.kernels import NEEDS
from perfkit.trace.columns import Trace


def rows_of_nsys(read: Callable[[Path], Sequence[Any]]) -> Callable[[TableSource], Sequence[Any]]:
    """The rows that ``read`` makes of an nsys export; none for another recording."""

    def rows(source: TableSource) -> Sequence[Any]:
        trace = source.trace
        return read(trace.path) if trace is not None and trace.metadata.format == "nsys" else ()

    return rows


def table_over_time(
    name: str, title: str, measure: Callable[[Trace], Iterable[Any]], note: str, values: Sequence[TableField]
) -> TableDefinition:
    """A table of equal parts of each device's window: the part, its ``values``, and the device."""
    return TableDefinition(
        name=name,
        title=title,
        needs=NEEDS,
        rows=lambda source: measure(source.trace) if source.trace is not None else (),
        note=lambda source: note,
        fields=(
            TableField("start", "ns", "start_ns"),
            TableField("end", "ns", "end_ns"),
            *values,
            TableField("device", "count", "device"),
        ),
        on_page=False,
    )
