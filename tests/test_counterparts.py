"""docs/counterparts.md: every table, column, option, name, rule and section that it names exists."""

from __future__ import annotations

import re
import shlex
from functools import reduce
from pathlib import Path

import click
import pytest

import perfkit
from perfkit.commands import command_line
from perfkit.reports.tables import find_tables, table_named
from perfkit.reports.tables._table import Column
from perfkit.rules._engine import find_rules
from tests.counterparts import PAGE, page, read

REFERENCES = sorted({one for tool in read().tools for row in tool.rows for one in row.references})
SECTIONS = {
    name
    for file in (Path(perfkit.__file__).parent / "reports" / "page").glob("*.js")
    for name in re.findall(r'^(?:section|one_table)\("([a-z-]+)"', file.read_text(), re.MULTILINE)
}


def keys(table: str, by: str | None = None) -> set[str]:
    fields = table_named(table, by).fields
    return {key for field in fields for key in (field.heading, Column(field.heading).key)}


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_the_page_names_exists(reference: str) -> None:
    kind, _, rest = reference.partition(" ")
    if kind == "table":
        name, *options = shlex.split(rest)
        given = dict(zip(options[::2], options[1::2], strict=True))
        assert given.keys() <= {"--by", "--sort"}
        assert given.get("--sort", "").replace("-", "_") in {"", *keys(name, given.get("--by"))}
    elif kind == "column":
        table, _, heading = rest.partition(".")
        name, *by = table.split(" --by ")
        assert heading in keys(name, *by)
    elif kind == "command":
        name, *options = rest.split()
        command = command_line.get_command(click.Context(command_line), name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(options) <= known
    elif kind == "api":
        assert callable(reduce(getattr, rest.split("."), perfkit))
    elif kind == "rule":
        assert rest in {rule.id for rule in find_rules()}
    else:
        assert kind == "page"
        assert rest in SECTIONS


def test_the_page_is_written_from_its_data() -> None:
    assert PAGE.read_text() == page(), "python -m tests.counterparts"


def test_a_row_without_a_counterpart_says_what_to_use() -> None:
    assert all(row.references or row.note for tool in read().tools for row in tool.rows)


def test_every_table_is_some_tools_counterpart_or_perfkits_own() -> None:
    named = {one.split()[1].split(".")[0] for one in REFERENCES if one.split()[0] in ("table", "column")}

    assert set(find_tables()) - named == {"ranks"}
