"""The tables of a page: those of `perfkit.reports.tables` that pages show, from what a diagnosis kept."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perfkit.diagnosis import Diagnosis
from perfkit.measures.results.kernels import class_times
from perfkit.measures.results.measurements import Measurements
from perfkit.reports.tables import find_tables
from perfkit.reports.tables._definition import TableDefinition, TableField, TableSource
from perfkit.reports.tables._table import Table
from perfkit.run.reading import RunFolder

#: The order of the tables on a page; others follow.
_ORDER = ("syncs", "ranges", "ops", "kernels", "kernel-profiles", "kernel-classes", "api", "copies", "collectives")


def tables_of(diagnosis: Diagnosis, run: RunFolder | None) -> Iterator[Table]:
    """Each table that has rows."""
    source = TableSource(_kept(diagnosis), run=run, limited=True)
    shown = [table for table in find_tables().values() if table.on_page]
    shown.sort(key=lambda table: _ORDER.index(table.name) if table.name in _ORDER else len(_ORDER))
    yield from (made for table in shown if (made := table.make(source)).rows)


def _kept(diagnosis: Diagnosis) -> Measurements:
    """What the diagnosis kept of its measures, by type."""
    found, figures = Measurements(diagnosis.source), diagnosis.figures
    for field in msgspec.structs.fields(figures):
        value = getattr(figures, field.name)
        if isinstance(value, msgspec.Struct) or (isinstance(value, tuple) and value):
            found.add(value)
    found.add(class_times(figures.kernel_classes_ns))
    return found


def rules_not_asked(diagnosis: Diagnosis) -> Table | None:
    """The rules that were not asked, with what they need; None if all were asked."""
    table = TableDefinition(
        name="not-asked",
        title="Rules that were not asked",
        needs="",
        rows=lambda _: diagnosis.not_asked,
        note=lambda _: "",
        fields=(
            TableField("rule", "text", "rule"),
            TableField("needs", "text", lambda rule: " and ".join(rule.needs)),
        ),
    ).make(TableSource(Measurements(diagnosis.source)))
    return table if table.rows else None
