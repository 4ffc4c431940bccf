"""The page of a history in a real browser: changes, objectives, runs, and what could not be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit.history.results import (
    History,
    ObjectiveResult,
    RunSummary,
    SkippedRun,
    StepChange,
    WorkloadHistory,
)
from perfkit.reports.figures.history import figures_of_history
from perfkit.reports.html import render_html, write_html

MS = 1_000_000
START_NS = 1_767_614_400_000_000_000


def workload(runs: int, name: str = "train.py") -> WorkloadHistory:
    """Runs of 40 ms, of 50 ms from the middle on."""
    half = runs // 2
    times = [(40 if at < half else 50) * MS for at in range(runs)]
    change = StepChange(
        at=half,
        path=f"runs/{half}",
        start_unix_ns=START_NS,
        before_ns=40 * MS,
        after_ns=50 * MS,
        share=0.25,
        low=0.23,
        high=0.27,
        commit_before="a" * 40,
        commit="b" * 40,
    )
    return WorkloadHistory(
        name=name,
        machine="host ci-1, CPU",
        runs=tuple(
            RunSummary(
                path=f"runs/{at}",
                start_unix_ns=START_NS + at * 10**13,
                commit=("a" if at < half else "b") * 40,
                dirty=at == 0,
                median_ns=ns,
                p10_ns=ns - MS,
                p90_ns=ns + 2 * MS,
                phases_ns={"data": ns},
                steps=100,
                finding="input-bound train.py:12",
                notes=("it wrote no end",) if at == 1 else (),
            )
            for at, ns in enumerate(times)
        ),
        changes=(change,),
        noise=0.01,
        visible=0.03,
        verdict="The step takes 50.0 ms, +25%.",
        objectives=(
            ObjectiveResult(
                objective="step <= 45ms",
                metric="step",
                limit=45e6,
                value=50e6,
                met=False,
                sentence="the median breaks it",
            ),
        ),
    )


def test_the_page_shows_the_change_its_commit_the_objective_as_a_line_and_all_runs(
    tmp_path: Path, opened: Callable[..., Any]
) -> None:
    history = History(source="runs", workloads=(workload(20),), skipped=(SkippedRun("runs/x", "it is damaged"),))
    page_of = write_html(figures_of_history(history), tmp_path / "history.html")

    seen = opened(page_of)
    section = seen.section("history")
    assert seen.page.locator(".verdict").inner_text() == "The step takes 50.0 ms, +25%. The median breaks it."
    assert section.locator("svg line.slower").count() == 1
    assert section.locator("svg line.limit").count() == 1
    labels = section.locator("svg text").all_text_contents()
    assert "+25% bbbbbbb" in labels
    assert "step <= 45ms" in labels
    assert section.locator("p.broken").inner_text() == "✗ the median breaks it"
    assert section.locator("tbody tr").count() == 20
    assert "runs/19" in section.locator("tbody tr").first.inner_text()
    shown = seen.page.locator("section[data-section]").evaluate_all("all => all.map(one => one.dataset.section)")
    assert shown == ["verdict", "history", "missing"]
    assert "runs/x was skipped: it is damaged" in seen.section("missing").inner_text()


def test_the_arrow_keys_go_from_run_to_run(tmp_path: Path, opened: Callable[..., Any]) -> None:
    page_of = write_html(figures_of_history(History(source="runs", workloads=(workload(20),))), tmp_path / "h.html")
    section = opened(page_of).section("history")

    section.locator("svg").first.focus()
    section.locator("svg").first.press("End")
    assert section.locator(".status").inner_text().startswith("runs/19, 2026-")
    section.locator("svg").first.press("ArrowLeft")
    assert "runs/18" in section.locator(".status").inner_text()


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_page(tmp_path: Path, opened: Callable[..., Any], width: int) -> None:
    history = History(source="runs", workloads=(workload(300), workload(8, "eval.py " + "--long-option 1 " * 20)))
    page = opened(write_html(figures_of_history(history), tmp_path / "h.html")).page
    page.set_viewport_size({"width": width, "height": 900})

    # Charts are drawn again after the page has become narrower; a timeout is the failure.
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width, timeout=10_000)
    assert page.locator("section[data-section=history] svg").count() >= 2


def test_names_of_programs_and_folders_are_text_and_a_long_history_stays_below_a_megabyte() -> None:
    history = History(source="runs", workloads=(workload(1000, "<script>alert(1)</script>"),))
    text = render_html(figures_of_history(history))

    assert "<script>alert" not in text
    assert len(text) < 1_000_000
