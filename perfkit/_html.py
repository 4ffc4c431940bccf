"""The HTML table that notebooks show for a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A small table for notebooks; every cell is escaped."""
    # Notebooks align cells to the right by default, which is hard to read for sentences.
    left = 'style="text-align: left"'
    cells = "".join(f"<th {left}>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td {left}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
