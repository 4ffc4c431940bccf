"""A table as data: what terminals, CSV, JSON and pages show."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

#: The unit of a column, which decides its format, alignment and order; "share" is 0 to 1.
Unit = Literal["text", "place", "ns", "bytes", "count", "share", "number", "flops"]
Cell: TypeAlias = int | float | str | None

#: Units whose cells are texts.
TEXTS: tuple[Unit, ...] = ("text", "place")


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    label: str
    unit: Unit = "text"

    @property
    def key(self) -> str:
        """Its name for programs: ``host_self_ns``, ``bytes_per_s``."""
        words = re.sub(r"[^a-z0-9]+", "_", self.label.lower().replace("/s", " per s")).strip("_")
        return f"{words}_ns" if self.unit == "ns" else words


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table that can be sorted; a cell is a number in the column's unit, a text, or None."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
