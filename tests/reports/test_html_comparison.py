"""The page of a comparison: the step before and after on one scale, what changed, and the findings that are new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perfkit
from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import Finding
from perfkit.reports.figures import figures_of_comparison
from perfkit.reports.html import write_html
from perfkit.run.records import Phases

MS = 1_000_000


@pytest.fixture
def faster(diagnosis: Diagnosis) -> Diagnosis:
    """The same training with a quarter of the step, another finding, and the first one gone."""
    assert diagnosis.step is not None
    phases = Phases(data=2 * MS, forward=10 * MS, backward=7 * MS, optimizer=1 * MS)
    step = msgspec.structs.replace(diagnosis.step, wall_ns=20 * MS, phases_ns=phases)
    new = msgspec.structs.replace(diagnosis.findings[1], rule="copies-dominate", follows="launch-bound")
    return msgspec.structs.replace(diagnosis, source="runs/fixed", step=step, phases=phases, findings=(new,))


def test_the_page_shows_both_steps_on_one_scale(
    diagnosis: Diagnosis, faster: Diagnosis, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    seen = opened(write_html(figures_of_comparison(perfkit.compare(diagnosis, faster)), tmp_path / "page.html"))

    def width(bar: int) -> float:
        boxes = seen.section("where").locator("svg[role=img]").nth(bar).locator("rect")
        return float(boxes.evaluate_all("all => Math.max(...all.map(one => one.getBBox().x + one.getBBox().width))"))

    assert width(1) / width(0) == pytest.approx(0.25, abs=0.01)
    assert "80.0 ms before, 20.0 ms after" in seen.page.locator(".verdict").inner_text()
    names = seen.page.locator("[data-table=differences] tbody th").all_inner_texts()
    assert names[:3] == ["step", "data", "forward"]


def test_the_page_shows_new_findings_and_those_no_longer_found(
    diagnosis: Diagnosis, faster: Diagnosis, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    seen = opened(write_html(figures_of_comparison(perfkit.compare(diagnosis, faster)), tmp_path / "page.html"))

    assert seen.section("findings").get_by_role("heading").first.inner_text() == "New findings"
    assert seen.page.locator(".finding .rule").all_inner_texts() == ["copies-dominate"]
    assert "input-bound train.py:31" in seen.section("verdict").inner_text()
    seen.page.get_by_role("tab", name="No longer found").click()
    gone = seen.page.locator("[data-table=gone] tbody th").all_inner_texts()
    assert set(gone) == {"input-bound", "many-small-ops", "sync-in-step"}


def test_traces_without_steps_are_compared_without_bars(diagnosis: Diagnosis) -> None:
    nothing = msgspec.structs.replace(diagnosis, step=None, phases=None)

    data = figures_of_comparison(perfkit.compare(nothing, nothing))

    assert data.bars == ()
    assert data.verdict.startswith("The recording took 80.0 ms before, 80.0 ms after")
    assert data.per == "recording"


@pytest.mark.parametrize("part", range(2))
def test_a_comparison_of_hostile_texts_shows_them_as_they_are(
    diagnosis: Diagnosis, hostile: list[str], tmp_path: Path, opened: Callable[..., Any], part: int
) -> None:
    findings = tuple(
        Finding(
            rule=text,
            severity="critical",
            message=text,
            advice=text,
            confidence="high",
            spent=Location(file=text, line=1),
        )
        for text in hostile[part::2]
    )
    hurt = msgspec.structs.replace(diagnosis, source="".join(hostile), findings=findings)
    page = opened(write_html(figures_of_comparison(perfkit.compare(diagnosis, hurt)), tmp_path / "page.html")).page

    assert page.locator(".finding").count() == len(findings)
    assert page.evaluate("window.hacked") is None
    tags = page.evaluate("[...new Set([...document.querySelectorAll('main *')].map(one => one.localName))]")
    assert not set(tags) & {"img", "iframe", "object", "embed", "form", "input", "script", "style", "link", "base"}
