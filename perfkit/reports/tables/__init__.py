"""Tables of a recording, one per file: each defines ``TABLE``, which commands and pages both show.

A table is a `TableDefinition`: a query of measures (`perfkit.measures`) that gives its rows, and its columns. To add
one, add a file; `perfkit diagnose --table NAME` finds it, and ``on_page`` decides whether pages show it too.
"""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib import import_module

from perfkit.errors import UsageError
from perfkit.reports.tables._definition import TableDefinition

__all__ = ["find_tables", "nearest", "table_named"]


@cache
def find_tables() -> dict[str, TableDefinition]:
    """Every table, by name."""
    modules = sorted(name for _, name, _ in pkgutil.iter_modules(__path__) if not name.startswith("_"))
    tables = [import_module(f"{__name__}.{name}").TABLE for name in modules]
    return {table.name: table for table in tables}


def table_named(name: str, by: str | None = None) -> TableDefinition:
    """The table of this name, in the groups ``by``.

    Raises:
        UsageError: there is no such table, or it is not made in such groups.
    """
    tables = find_tables()
    table = tables.get(name)
    if table is None:
        raise UsageError(f"there is no table {name!r}{nearest(name, tables)}; the tables are {', '.join(tables)}")
    if by is None:
        return table
    if by not in table.by:
        groups = f"takes --by {', '.join(table.by)}" if table.by else "takes no --by"
        others = [other.name for other in tables.values() if by in other.by]
        where = f"; tables that take --by {by}: {', '.join(others)}" if others else nearest(by, table.by)
        raise UsageError(f"the table {name} {groups}, got {by!r}{where}")
    return table.by[by]


def nearest(name: str, known: Iterable[str]) -> str:
    """``, did you mean ops?`` for a name that is near a known one; else empty."""
    near = difflib.get_close_matches(name.lower(), list(known), n=2, cutoff=0.5)
    return f", did you mean {' or '.join(near)}?" if near else ""
