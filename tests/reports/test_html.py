"""The HTML page in a real browser: what it shows, and what it answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perfkit
from perfkit.commands import main
from perfkit.diagnosis import Diagnosis
from perfkit.reports.figures import read_figures
from perfkit.reports.html import write_html


def test_the_page_of_a_run_shows_its_verdict_steps_findings_timeline_and_lines(
    run: Path, opened: Callable[..., Any]
) -> None:
    seen = opened(run / "report.html")
    page = seen.page
    answer = Diagnosis.from_json((run / "diagnosis.json").read_bytes())

    assert page.locator(".verdict").text_content() == answer.verdict
    shown = page.locator("section[data-section]").evaluate_all("all => all.map(one => one.dataset.section)")
    assert {"verdict", "where", "findings", "steps", "timeline", "tables", "memory", "flame", "ranks"} <= set(shown)
    rules = page.locator(".finding .rule").all_text_contents()
    assert rules == [finding.rule for finding in answer.findings if finding.follows is None]
    assert "input-bound" in rules
    assert seen.section("steps").locator("path.k-data").count() == 1
    assert seen.section("steps").locator("rect.state").count() >= 3
    assert "data" in seen.section("where").locator(".key").first.inner_text()


def test_a_click_on_a_findings_place_folds_its_source_with_the_line_marked(
    run: Path, opened: Callable[..., Any]
) -> None:
    page = opened(run / "report.html").page
    finding = page.locator(".finding", has=page.get_by_text("input-bound", exact=True)).first
    place, excerpt = finding.locator("button.place"), finding.locator(".excerpt")

    marked = excerpt.locator(".marked .text").text_content()
    assert marked is not None
    line = int(excerpt.locator(".marked .lineno").inner_text())
    assert (Path(__file__).parent / "conftest.py").read_text().splitlines()[line - 1] == marked
    assert excerpt.is_visible()
    place.click()
    assert not excerpt.is_visible()
    assert place.get_attribute("aria-expanded") == "false"


def test_the_rules_that_were_not_asked_are_listed_with_what_they_need(run: Path, opened: Callable[..., Any]) -> None:
    seen = opened(run / "report.html")
    answer = Diagnosis.from_json((run / "diagnosis.json").read_bytes())
    section = seen.section("not-asked")

    assert not section.locator("table").is_visible()
    section.locator("summary").click()
    assert section.locator("tbody th").all_inner_texts() == [rule.rule for rule in answer.not_asked]
    assert answer.not_asked[0].needs[0] in section.locator("tbody tr").first.inner_text()


def test_a_click_on_a_column_sorts_a_table_and_another_turns_it(run: Path, opened: Callable[..., Any]) -> None:
    page = opened(run / "report.html").page
    page.get_by_role("tab", name="Ops").click()
    table = page.locator("table[data-table=ops]")

    def counts() -> list[int]:
        return [int(text.replace(",", "")) for text in table.locator("tbody tr td:nth-child(2)").all_text_contents()]

    table.get_by_role("button", name="calls").click()
    assert counts() == sorted(counts(), reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("calls")
    table.get_by_role("button", name="calls").click()
    assert counts() == sorted(counts())


def test_the_flame_graph_goes_into_a_path_and_back(run: Path, opened: Callable[..., Any]) -> None:
    seen = opened(run / "report.html")
    page = seen.page
    flame = seen.section("flame")
    box = flame.locator("g[role=button]").nth(1)
    box.scroll_into_view_if_needed()

    box.focus()
    page.keyboard.press("Enter")
    assert "of the step" in flame.locator(".status").inner_text()
    flame.get_by_role("button", name="Show all").click()
    assert flame.locator(".status").inner_text() == ""


def test_colours_follow_the_system_and_the_button(run: Path, opened: Callable[..., Any]) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = opened(run / "report.html", color_scheme="light").page
    dark = opened(run / "report.html", color_scheme="dark").page

    assert light.evaluate(background) != dark.evaluate(background)
    light.get_by_role("button", name="Dark colours").click()
    assert light.evaluate(background) == dark.evaluate(background)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_is_never_wider_than_the_screen(run: Path, opened: Callable[..., Any], width: int) -> None:
    page = opened(run / "report.html", viewport={"width": width, "height": 800}).page

    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_has_a_name_and_every_drawing_says_what_it_is(run: Path, opened: Callable[..., Any]) -> None:
    page = opened(run / "report.html").page

    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, [role=button], [role=tab], [tabindex=\"0\"]')]"
        ".filter(one => !(one.textContent.trim() || one.getAttribute('aria-label'))).map(one => one.outerHTML)"
    )
    silent = page.evaluate(
        "[...document.querySelectorAll('svg')].filter(one => one.getAttribute('aria-hidden') !== 'true'"
        " && !(one.getAttribute('role') && one.getAttribute('aria-label'))).map(one => one.outerHTML.slice(0, 100))"
    )
    assert (unnamed, silent) == ([], [])
    heads = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))")
    assert heads[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(heads))


def test_without_its_script_the_page_still_shows_the_verdict(run: Path, opened: Callable[..., Any]) -> None:
    page = opened(run / "report.html", java_script_enabled=False).page

    assert Diagnosis.from_json((run / "diagnosis.json").read_bytes()).verdict in page.inner_text("main")


@pytest.mark.slow
def test_the_page_of_the_demo_shows_its_marked_mistakes(tmp_path: Path, opened: Callable[..., Any]) -> None:
    script = Path(perfkit.__file__).parent / "demo" / "train.py"
    shutil.copy(script, tmp_path / "train.py")
    command = [sys.executable, "-m", "perfkit", "run", "--out", "run", "train.py", "--steps", "40"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert main(["diagnose", str(tmp_path / "run"), "--html"]) == 0

    seen = opened(tmp_path / "run" / "report.html")
    page = seen.page

    shown = page.locator(".excerpt").all_text_contents()
    assert any("# mistake: input-bound" in text for text in shown)
    assert any("# mistake: many-small-ops" in text for text in shown)
    assert seen.section("flame").get_by_text("train.py").count() > 0


def test_figures_of_a_newer_perfkit_are_not_drawn_and_the_page_says_so(
    run: Path, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    newer = msgspec.structs.replace(read_figures(run), schema=99)

    page = opened(write_html(newer, tmp_path / "page.html")).page

    assert "schema 99" in page.get_by_role("alert").inner_text()


def test_a_page_that_is_drawn_again_listens_no_more_than_one_drawn_once(run: Path, opened: Callable[..., Any]) -> None:
    page = opened(run / "report.html").page
    page.evaluate(
        """() => {
          window.added = [];
          const add = EventTarget.prototype.addEventListener;
          EventTarget.prototype.addEventListener = function (...asked) {
            if ([window, document, document.body, document.getElementById('perfkit-root')].includes(this)) {
              window.added.push(asked[0]);
            }
            return add.apply(this, asked);
          };
          const data = JSON.parse(document.getElementById('perfkit-data').textContent);
          for (let i = 0; i < 3; i += 1) perfkit.draw(document.getElementById('perfkit-root'), data);
        }"""
    )

    assert page.evaluate("window.added") == []
    assert page.locator(".tip").count() == 1
    assert page.locator("section[data-section=verdict]").count() == 1
