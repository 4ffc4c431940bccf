"""Texts, code and tables in markdown, for any report: what comes from outside is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perfkit._text import printable

#: Characters that are special in markdown or in HTML inside it.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&-])")


def escaped(words: str) -> str:
    """Text from outside, with every special character escaped."""
    return _SPECIAL.sub(r"\\\1", printable(words))


def prose(words: str) -> str:
    """A sentence of perfkit, which may contain names from outside: what could become markup is escaped."""
    return re.sub(r"([\\`*_\[\]<>|&])", r"\\\1", printable(words, " "))


def inline_code(words: str) -> str:
    """Inline code, in which only the backtick and, in a table, the bar are special."""
    return "`" + printable(words).replace("`", "'").replace("|", "\\|") + "`"


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], numbers: int) -> Iterator[str]:
    """A table whose columns from ``numbers`` on are aligned to the right."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "|".join("---" if column < numbers else "---:" for column in range(len(head))) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def folded_table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], numbers: int) -> Iterator[str]:
    """A table that is unfolded by a click."""
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield from markdown_table(head, rows, numbers)
    yield "</details>"
    yield ""
