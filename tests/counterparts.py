"""Writes docs/counterparts.md from docs/counterparts.toml: ``python -m tests.counterparts``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "counterparts.md"


class Counterpart(msgspec.Struct, frozen=True, array_like=True):
    """What another tool shows, references to perfkit's counterpart (none: it has none), and a note."""

    theirs: str
    ours: str
    note: str

    @property
    def references(self) -> list[str]:
        return [one.strip() for one in self.ours.split(";") if one.strip()]


class OtherTool(msgspec.Struct, frozen=True):
    """A tool, where its side was read, and its rows."""

    name: str
    source: str
    rows: tuple[Counterpart, ...]


class Counterparts(msgspec.Struct, frozen=True):
    """The whole file."""

    tools: tuple[OtherTool, ...]


def read() -> Counterparts:
    return msgspec.toml.decode((DOCS / "counterparts.toml").read_bytes(), type=Counterparts)


def shown(reference: str) -> str:
    """A reference as a reader types or finds it."""
    kind, _, rest = reference.partition(" ")
    if kind == "table":
        return f"`perfkit diagnose PATH --table {rest}`"
    if kind == "column":
        table, _, heading = rest.partition(".")
        return f"`--table {table}`, column {heading}"
    if kind == "command":
        return f"`perfkit {rest}`"
    if kind == "api":
        return f"`perfkit.{rest}`"
    return f"rule [`{rest}`](#rules)" if kind == "rule" else f"the page (`--html`), section {rest}"


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Where other tools' output is in perfkit"
    yield ""
    yield "Tool by tool: what it shows, and where perfkit shows the same. Tables print on a terminal, as CSV (`--csv`)"
    yield "and as JSON (`--json`); `PATH` is a run folder, a Kineto trace, or a report of nsys. This page is written"
    yield "from `docs/counterparts.toml` by `python -m tests.counterparts`, and a test checks every name in it."
    for tool in read().tools:
        yield from ("", f"## {tool.name}", "", f"Source: {tool.source}.", "")
        yield from ("| there | in perfkit | note |", "| --- | --- | --- |")
        for row in tool.rows:
            theirs = row.theirs.replace("|", "\\|")
            yield f"| {theirs} | {'<br>'.join(map(shown, row.references)) or 'none'} | {row.note} |"
    yield from ("", "## Rules", "", "`perfkit explain RULE` prints when a rule fires and what it is based on.")


if __name__ == "__main__":
    PAGE.write_text(page())
