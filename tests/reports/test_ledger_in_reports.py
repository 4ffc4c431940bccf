"""Each report shows where the step goes: at the limit, claimed by findings, unexplained, and the rows behind it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.integrations.tensorboard.writers import to_markdown
from perfkit.ledger.ledger import ClaimedLedger
from perfkit.ledger.rows import LedgerRow
from perfkit.reports.figures import figures_of, read_figures, write_figures
from perfkit.reports.html import render_html
from perfkit.reports.markdown import write_markdown
from perfkit.reports.terminal import print_diagnosis

MS = 1_000_000
LINE = (
    "at the limit 39% · claimed by findings 48% · unexplained 13% · the 49% with a known limit runs at 64% of what "
    "this machine can do"
)


def unexplained(answer: Diagnosis) -> Diagnosis:
    assert answer.ledger is not None
    ledger = msgspec.structs.replace(answer.ledger, claims=())
    return msgspec.structs.replace(answer, outcome="unexplained", findings=(), ledger=ledger)


def with_rows(answer: Diagnosis, *rows: LedgerRow) -> Diagnosis:
    assert answer.ledger is not None
    ledger = msgspec.structs.replace(answer.ledger.ledger, rows=rows, wall_ns=sum(row.ns for row in rows))
    return msgspec.structs.replace(answer, ledger=ClaimedLedger(ledger=ledger))


def test_one_line_below_the_bar_says_how_the_step_is_accounted_for(
    accounted: Diagnosis, written: Callable[..., str]
) -> None:
    text = written(print_diagnosis, accounted, 80)

    assert " ".join(LINE.split()) in " ".join(text.split())
    assert text.index("optimizer 3.0 ms") < text.index("at the limit") < text.index("1 input-bound")
    assert "of limit" not in text
    assert len(text.splitlines()) <= 25


def test_what_is_unexplained_is_a_table_of_the_largest_parts(accounted: Diagnosis, written: Callable[..., str]) -> None:
    lines = written(print_diagnosis, unexplained(accounted), 80).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("unexplained "))

    assert lines[at : at + 5] == [
        "unexplained           place                            per step  share  of limit",
        "data                  train.py:31                       40.0 ms    50%         -",
        "computing in forward  packages/o…eriments/model.py:11    7.0 ms     9%       11%",
        "python in other       -                                  600 µs     1%         -",
        "",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_all_shows_the_rows_without_a_line_wider_than_the_terminal(
    accounted: Diagnosis, written: Callable[..., str], width: int
) -> None:
    lines = written(print_diagnosis, accounted, width, all=True).splitlines()

    assert max(map(len, lines)) <= width
    if width == 120:
        at = next(number for number, line in enumerate(lines) if line.startswith("owner "))
        assert [line.split() for line in lines[at : at + 5]] == [
            ["owner", "what", "place", "claimed", "by", "per", "step", "share", "of", "limit"],
            ["data", "data", "train.py:31", "input-bound", "90%", "40.0", "ms", "50%", "-"],
            ["computing", "mm", "in", "forward", "model.py:9", "-", "30.0", "ms", "38%", "80%"],
            [
                "computing", "sort", "in", "forward", "packages/of/th…/group/experiments/model.py:11",
                "many-small-ops", "22%", "9.0", "ms", "11%", "11%",
            ],
            ["2", "others", "-", "-", "-", "1.0", "ms", "1%", "-"],
        ]  # fmt: skip


def test_nothing_is_accounted_for_where_the_recording_is_incomplete(
    accounted: Diagnosis, written: Callable[..., str]
) -> None:
    answer = msgspec.structs.replace(accounted, outcome="cannot-tell")

    assert "at the limit" not in written(print_diagnosis, answer, all=True)
    assert figures_of(answer).ledger is None
    assert answer.ledger is not None
    assert '"ledger"' in answer.to_json()


def test_a_step_without_known_limits_says_so(accounted: Diagnosis, written: Callable[..., str]) -> None:
    answer = with_rows(accounted, LedgerRow(owner="computing", name="aten::mm", ns=80 * MS))

    assert "unexplained 100% · no limit is known\n" in written(print_diagnosis, answer)


def test_markdown_notebooks_and_tensorboard_have_the_line_and_a_table(accounted: Diagnosis) -> None:
    file = io.StringIO()
    write_markdown(accounted, file)
    markdown = file.getvalue()

    assert LINE in markdown
    assert "<details><summary>where the step goes</summary>" in markdown
    assert "| computing | mm in forward | model.py:9 | \\- | 30.0 ms | 38% | 80% |" in markdown
    assert LINE.rpartition(" · ")[2] in accounted._repr_html_()
    for part in LINE.split(" · ")[:3]:
        name, _, share = part.rpartition(" ")
        assert re.search(rf"{name}[^<]*{share}", accounted._repr_html_())
    assert ">mm in forward</td>" in accounted._repr_html_()
    assert LINE in to_markdown(accounted)
    assert "| unexplained |" not in to_markdown(accounted)
    assert "| python in other | - | 600 µs | 1% | - |" in to_markdown(unexplained(accounted))
    assert "| python in other | \\- | 600 µs | 1% | \\- |" in written_markdown(unexplained(accounted))


def written_markdown(answer: Diagnosis) -> str:
    file = io.StringIO()
    write_markdown(answer, file)
    return file.getvalue()


def test_hostile_names_of_rows_are_texts_in_each_report(accounted: Diagnosis, hostile: list[str]) -> None:
    rows = [
        LedgerRow(owner="computing", name=text, ns=MS, at=Location(file=text, line=1), limit_ns=1) for text in hostile
    ]
    answer = unexplained(with_rows(accounted, *rows))

    assert "<img" not in answer._repr_html_() + written_markdown(answer).replace("\\<", "") + to_markdown(answer)
    assert "<img" not in render_html(figures_of(answer)).split("<script>")[0]


def test_the_owners_of_the_page_sum_to_the_step_and_long_ledgers_are_cut(accounted: Diagnosis, tmp_path: Path) -> None:
    rows = [LedgerRow(owner="computing", name=f"op{number}", ns=1000 - number) for number in range(500)]
    data = figures_of(with_rows(accounted, *rows))

    assert data.ledger is not None
    owner = data.ledger.owners[0]
    assert owner.claimed_ns + owner.at_limit_ns + owner.overhead_ns + owner.unexplained_ns == data.ledger.wall_ns
    assert len(data.ledger.rows.rows) == len(data.ledger.excerpt_of_row) == 300
    assert "200 shorter rows take" in data.ledger.rows.note
    assert read_figures(write_figures(tmp_path, data)) == data


@pytest.fixture
def page(accounted: Diagnosis, tmp_path: Path, opened: Callable[..., Any]) -> Any:
    """The section of the page, with a source file behind the first row."""
    source = tmp_path / "train.py"
    source.write_text("".join(f"line({number})\n" for number in range(1, 40)))
    assert accounted.ledger is not None
    first, *others = accounted.ledger.ledger.rows
    rows = (msgspec.structs.replace(first, at=Location(file=str(source), line=31)), *others)
    ledger = msgspec.structs.replace(accounted.ledger.ledger, rows=rows)
    answer = msgspec.structs.replace(accounted, ledger=msgspec.structs.replace(accounted.ledger, ledger=ledger))
    file = tmp_path / "report.html"
    file.write_text(render_html(figures_of(answer)))
    return opened(file).section("ledger")


def test_the_bar_shows_owners_and_their_parts_in_true_proportions(page: Any) -> None:
    boxes = page.locator(".ledger svg[role=img] rect")
    drawn = boxes.evaluate_all(
        "all => all.map(one => [one.getAttribute('class'), +one.getAttribute('y'), +one.getAttribute('width')])"
    )
    whole = page.locator(".ledger svg[role=img]").evaluate("one => one.clientWidth")

    owners = {kind: width / whole for kind, y, width in drawn if y == 0}
    assert owners == pytest.approx({"k-data": 0.5, "k-compute": 39 / 80, "k-python": 0.6 / 80, "k-idle": 0.4 / 80})
    # Of a row of 9 ms with a limit of 1 ms 2 ms are claimed: twice its limit of the rest are at the limit.
    at_limit = 30 + 2 * 7 / 9
    parts = {"k-claimed": 38 / 80, "k-at-limit": at_limit / 80, "k-unexplained": (42 - at_limit) / 80}
    for kind, share in parts.items():
        assert sum(width for one, y, width in drawn if y and one == kind) / whole == pytest.approx(share)


def test_a_click_on_an_owner_shows_only_its_rows_and_another_all(page: Any) -> None:
    names = page.locator("tbody th")
    python = page.get_by_role("button", name="python")

    assert names.all_inner_texts() == [
        "data", "mm in forward", "sort in forward", "outside ops in other", "sync"
    ]  # fmt: skip
    python.click()
    assert names.all_inner_texts() == ["outside ops in other"]
    assert python.get_attribute("aria-pressed") == "true"
    python.click()
    assert names.count() == 5
    page.locator("svg[role=img] rect.k-compute").click()
    assert names.all_inner_texts() == ["mm in forward", "sort in forward"]


def test_a_click_on_a_row_shows_its_line_and_the_rows_can_be_sorted(page: Any) -> None:
    row = page.locator("tr.opens").first
    row.click()

    assert page.locator(".marked .text").all_text_contents() == ["line(31)"]
    assert row.locator("button.place").get_attribute("aria-expanded") == "true"
    row.locator("button.place").click()
    assert not page.locator(".excerpt").is_visible()
    page.get_by_role("button", name="of limit").click()
    assert page.locator("tbody th").all_inner_texts()[:2] == ["mm in forward", "sort in forward"]
