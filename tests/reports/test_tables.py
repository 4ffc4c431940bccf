"""Tables on the terminal, in a pipe, as CSV and as JSON; and their errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from perfkit.commands import main
from perfkit.diagnosis import Diagnosis
from perfkit.reports.figures import read_figures
from perfkit.reports.tables import find_tables, table_named
from perfkit.reports.tables._reading import table_source
from perfkit.reports.tables._table import Column, Table
from perfkit.reports.tables._writing import arranged, print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

Capture = pytest.CaptureFixture[str]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def diagnose(capsys: Capture, *arguments: str | Path) -> str:
    assert main(["diagnose", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_csv_and_json_have_the_same_rows_with_all_digits(run: Path, capsys: Capture) -> None:
    rows = rows_of(diagnose(capsys, run, "--table", "ops", "--csv"))
    answer = json.loads(diagnose(capsys, run, "--table", "ops", "--json"))

    assert len(rows) == len(answer["rows"]) > 10
    assert [row["op"] for row in rows] == [row["op"] for row in answer["rows"]]
    for one, other in zip(rows, answer["rows"], strict=True):
        assert int(one["self_ns"]) == other["self_ns"] <= other["total_ns"]
        assert other["min_ns"] <= other["median_ns"] <= other["max_ns"]
        assert other["min_ns"] * other["calls"] <= other["total_ns"] <= other["max_ns"] * other["calls"]
    assert sum(row["share"] for row in answer["rows"]) == pytest.approx(1)


def test_the_page_and_the_terminal_have_the_same_numbers_under_the_same_headings(run: Path, capsys: Capture) -> None:
    page = next(table for table in read_figures(run).tables if table.id == "ops")
    keys = [column.key for column in page.columns]
    rows = rows_of(diagnose(capsys, run, "--table", "ops", "--csv"))

    assert [row["op"] for row in rows[: len(page.rows)]] == [row[0] for row in page.rows]
    for shown, one in zip(page.rows, rows, strict=False):
        assert {key: str(cell) for key, cell in zip(keys, shown, strict=True) if isinstance(cell, int)} == {
            key: one[key] for key, cell in zip(keys, shown, strict=True) if isinstance(cell, int)
        }


def test_what_a_diagnosis_counts_is_what_its_tables_count(run: Path, capsys: Capture) -> None:
    ops = Diagnosis.from_json((run / "diagnosis.json").read_bytes()).figures.ops

    rows = rows_of(diagnose(capsys, run, "--table", "ops", "--csv"))

    assert [(one.name, str(one.count)) for one in ops] == [(row["op"], row["calls"]) for row in rows[: len(ops)]]


def test_a_column_sorts_and_a_limit_cuts(run: Path, capsys: Capture) -> None:
    longest = rows_of(diagnose(capsys, run, "--table", "ops", "--sort", "calls", "--limit", "3", "--csv"))
    named = rows_of(diagnose(capsys, run, "--table", "ops", "--sort", "op", "--csv"))

    calls = [int(row["calls"]) for row in longest]
    assert len(calls) == 3
    assert calls == sorted(calls, reverse=True)
    assert calls[0] == max(int(row["calls"]) for row in named)
    assert [row["op"] for row in named] == sorted(row["op"] for row in named)


def test_ops_by_step_have_as_many_calls_as_ops_by_name(run: Path, capsys: Capture) -> None:
    whole = {row["op"]: int(row["calls"]) for row in rows_of(diagnose(capsys, run, "--table", "ops", "--csv"))}
    by_step: dict[str, int] = {}
    for row in rows_of(diagnose(capsys, run, "--table", "ops", "--by", "step", "--csv")):
        by_step[row["op"]] = by_step.get(row["op"], 0) + int(row["calls"])

    assert by_step == whole


def test_lines_ranges_and_ranks_of_a_run_are_listed(run: Path, capsys: Capture) -> None:
    lines = rows_of(diagnose(capsys, run, "--table", "lines", "--csv"))
    ranges = rows_of(diagnose(capsys, run, "--table", "ranges", "--csv"))
    ranks = rows_of(diagnose(capsys, run, "--table", "ranks", "--csv"))

    assert any(row["line"].startswith(str(Path(__file__).parent / "conftest.py")) for row in lines)
    assert any(row["range"].startswith("Optimizer.step#") for row in ranges)
    assert [row["rank"] for row in ranks] == ["0"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--table", "kernel"], "did you mean kernels"),
        (["--table", "nonsense"], "the tables are api, bandwidth,"),
        (["--table", "ops", "--sort", "totl"], "did you mean total"),
        (["--table", "ops", "--by", "stream"], "the table ops takes --by shape, module, line, step, got 'stream'"),
        (["--table", "gaps", "--by", "step"], "tables that take --by step: api, copies, kernels, ops"),
        (["--table", "kernels"], "kernels are recorded on a machine with a GPU"),
        (["--table", "ops", "--by", "shape"], "perfkit run --record-shapes"),
        (["--table", "osrt"], "nsys -t osrt"),
        (["--table", "unified-memory"], "--cuda-um-gpu-page-faults=true"),
        (["--table", "ops", "--csv", "--json"], "choose one of --csv and --json"),
        (["--sort", "total"], "--sort is for a table: add --table NAME"),
        (["--csv"], "--csv writes a table: add --table NAME"),
    ],
)
def test_what_cannot_be_shown_is_one_line_with_what_to_do(
    run: Path, capsys: Capture, arguments: Sequence[str], expected: str
) -> None:
    assert main(["diagnose", str(run), *arguments]) == 2

    seen = capsys.readouterr()
    assert seen.out == ""
    assert expected in " ".join(seen.err.split())
    assert "Traceback" not in seen.err


def a_table(name: str) -> Table:
    columns = (Column("kernel"), Column("calls", "count"), Column("total", "ns"), Column("note"), Column("max", "ns"))
    return Table(id="kernels", title="Kernels", columns=columns, rows=((name, 3, 2_500_000, "x" * 60, None),) * 2)


def written(table: Table, width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, markup=False)
    print_rows(table, len(table.rows), console)
    return file.getvalue()


def test_a_pipe_gets_whole_names_and_no_colours() -> None:
    name = "void at::native::" + "vectorized_elementwise_kernel" * 8

    text = written(a_table(name), 80, terminal=False)

    assert name in text
    assert "\x1b" not in text
    assert "…" not in text


def test_a_terminal_shortens_long_names_in_the_middle_and_says_which_columns_do_not_fit() -> None:
    name = "void at::native::" + "vectorized_elementwise_kernel" * 8 + "_end"

    text = written(a_table(name), 60, terminal=True)

    lines = text.splitlines()
    assert max(map(len, lines)) <= 60
    row = next(line for line in lines if line.startswith("void"))
    assert "…" in row
    assert "_end" in row
    assert "not shown at this width:" in text
    assert "note" in text.split("not shown at this width:")[1]


def test_a_hostile_name_reaches_neither_the_terminal_nor_the_csv_as_it_is() -> None:
    assert "\x1b" not in written(a_table("\x1b[2Jgemm\u202e"), 80, terminal=True)
    assert "\\u001b[2Jgemm\\u202e" in written(a_table("\x1b[2Jgemm\u202e"), 80, terminal=False)


def test_rows_without_a_value_are_last_in_both_directions() -> None:
    table = Table(
        id="x", title="X", columns=(Column("a"), Column("n", "count")), rows=(("b", None), ("a", 1), ("c", 2))
    )

    assert [row[0] for row in arranged(table, "n", None).rows] == ["c", "a", "b"]
    assert [row[0] for row in arranged(table, "a", None).rows] == ["a", "b", "c"]


def test_every_table_says_what_to_record_and_has_its_own_columns() -> None:
    for name, table in find_tables().items():
        for one in (table, *table.by.values()):
            keys = [Column(field.heading, field.unit).key for field in one.fields]
            assert len(set(keys)) == len(keys), name
            assert one.needs, name
        assert table_named(name) is table


def test_every_table_can_be_made_of_a_run(run: Path) -> None:
    source = table_source(run)

    for table in find_tables().values():
        for one in (table, *table.by.values()):
            one.make(source)
