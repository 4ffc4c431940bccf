"""Each report shows where the time passes and, where it is another line, what to edit."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit._format import shown_change, shown_place, shown_places, shown_target
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.integrations.tensorboard.writers import to_markdown
from perfkit.reports.figures import figures_of
from perfkit.reports.html import render_html
from perfkit.reports.json import write_json
from perfkit.reports.markdown import write_markdown
from perfkit.reports.terminal import print_diagnosis

LOADER = Location(file="train.py", line=12, function="DataLoader(...)")


@pytest.fixture
def answer(diagnosis: Diagnosis) -> Diagnosis:
    waiting = msgspec.structs.replace(diagnosis.findings[0], change=LOADER)
    return msgspec.structs.replace(diagnosis, findings=(waiting, *diagnosis.findings[1:]))


def written_by(writer: Callable[..., None], answer: Diagnosis) -> str:
    file = io.StringIO()
    writer(answer, file)
    return file.getvalue()


def finding(**places: Any) -> Finding:
    return Finding(rule="r", severity="info", message="m", advice="a", **places)


def test_the_terminal_shows_the_line_to_edit_with_the_advice(answer: Diagnosis, written: Callable[..., str]) -> None:
    text = written(print_diagnosis, answer)

    assert "1 input-bound  spent at train.py:31       45.0 ms/step (56%)" in text
    assert "→ change train.py:12 (DataLoader(...)): Do the work" in text
    assert "2 many-small-ops  model.py:11 " in text
    assert text.count("change") == 1


def test_markdown_notebooks_tensorboard_and_json_show_both(answer: Diagnosis) -> None:
    both = "spent at train.py:31 (Reviews.__getitem__), change train.py:12 (DataLoader(...))"

    markdown = written_by(write_markdown, answer)
    assert "### 1. input-bound spent at `train.py:31`" in markdown
    assert "→ Change `train.py:12 (DataLoader(...))`: Do the work" in markdown
    assert both in answer._repr_html_()
    assert both.replace("_", r"\_") in to_markdown(answer)
    assert Diagnosis.from_json(written_by(write_json, answer)).findings[0].change == LOADER


def test_the_page_has_the_source_of_both(answer: Diagnosis, tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("".join(f"line({number})\n" for number in range(1, 40)))
    spent, change = (Location(file=str(source), line=line, function="f") for line in (31, 12))
    placed = msgspec.structs.replace(answer.findings[0], spent=spent, change=change)

    data = figures_of(msgspec.structs.replace(answer, findings=(placed,)))
    shown = data.findings[0]

    assert shown.excerpt is not None
    assert shown.change_excerpt is not None
    assert (shown.excerpt.line, shown.change_excerpt.line) == (31, 12)
    assert (shown.place, shown.change) == (f"{source}:31", f"{source}:12 (f)")
    assert f"Change {source}:12 (f): Do the work" in render_html(data)


def test_a_click_on_either_place_of_the_page_folds_its_source(
    answer: Diagnosis, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    source = tmp_path / "train.py"
    source.write_text("".join(f"line({number})\n" for number in range(1, 40)))
    spent, change = (Location(file=str(source), line=line, function="f") for line in (31, 12))
    placed = msgspec.structs.replace(answer.findings[0], spent=spent, change=change)
    page_file = tmp_path / "report.html"
    page_file.write_text(render_html(figures_of(msgspec.structs.replace(answer, findings=(placed,)))))

    shown = opened(page_file).page.locator(".finding")
    marked = shown.locator(".marked .text")

    assert marked.all_text_contents() == ["line(31)", "line(12)"]
    assert "spent at" in shown.locator("h3").inner_text()
    shown.locator(".advice button.place").click()
    assert [one.is_visible() for one in marked.all()] == [True, False]


def test_places_in_words() -> None:
    spent = Location(file="train.py", line=58, function="forward")
    at_module_level = Location(file="train.py", line=3, function="<module>")

    assert shown_places(finding(spent=spent, change=LOADER)) == (
        "spent at train.py:58 (forward), change train.py:12 (DataLoader(...))"
    )
    assert shown_places(finding(spent=spent)) == shown_place(finding(spent=spent)) == "train.py:58"
    assert shown_places(finding(change=LOADER)) == "change train.py:12 (DataLoader(...))"
    assert shown_places(finding(range="epoch")) == "epoch"
    assert shown_change(finding(change=at_module_level)) == "train.py:3"
    assert [shown_target(finding(spent=spent, change=change)) for change in (None, LOADER)] == [
        "train.py:58",
        "train.py:12",
    ]
    assert shown_target(finding()) == ""
