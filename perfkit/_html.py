"""HTML that notebooks show for a result: texts and tables, without a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from perfkit._text import LONGEST_SENTENCE, clean


def html_text(text: str) -> str:
    """Text from anywhere, cleaned and escaped."""
    return escape(clean(text, LONGEST_SENTENCE))


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A small table for notebooks; every cell is escaped."""
    # Notebooks align cells to the right by default, which is hard to read for sentences.
    left = 'style="text-align: left"'
    cells = "".join(f"<th {left}>{html_text(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td {left}>{html_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
