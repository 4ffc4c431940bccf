"""The page of many ranks: who is late when, hosts, a few ranks on one time line, and what to open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit.ranks._agreement import RankFacts
from perfkit.ranks.diagnosing import compare_columns
from perfkit.ranks.lateness_map import lateness_map
from perfkit.ranks.mapping import MappedRanks
from perfkit.ranks.path_diagnosis import DiagnosedRanks
from perfkit.ranks.rank_columns import RankColumns
from perfkit.reports.figures.columns import unpacked
from perfkit.reports.figures.data import FigureData, Lane, Timeline
from perfkit.reports.figures.ranks import figures_of_ranks
from perfkit.reports.html import render_html, write_html
from tests.ranks.build import MS, rank_columns, ranks_diagnosis
from tests.ranks.planted_jobs import Plan, run_plan


def diagnosed(columns: Sequence[RankColumns], **traces: str) -> DiagnosedRanks:
    """What `diagnose_sources` makes of these ranks."""
    compared = compare_columns(columns, "somewhere")
    facts = [RankFacts(one.rank, one.source, one.launch, one.world_size, None, None) for one in columns]
    mapped = MappedRanks([lambda one=one: one for one in columns], facts, ())
    paths = {int(rank.removeprefix("rank")): path for rank, path in traces.items()}
    return DiagnosedRanks(compared.diagnosis, paths, 0, compared.lateness, mapped, compared.clocks)


def job(layout: str = "rows ddp", cause: str | None = "data", ranks: int = 64, per_host: int = 8) -> list[RankColumns]:
    """A job of steps of 100 ms in which rank 5 is late by a quarter of it."""
    plan = Plan(
        seed=4, layout=layout, ranks=ranks, per_host=per_host, steps=60 if "rows" in layout else 12, step_ns=100e6,
        noise="device", cause=cause, late=(5,), strength=0.25,
    )  # fmt: skip
    return run_plan(plan).ranks


def timeline_of(data: FigureData) -> Timeline:
    assert data.timeline is not None
    return data.timeline


def ends_of(lane: Lane, line: Timeline, name: str) -> list[int]:
    """When the items of this name end."""
    start, length = np.cumsum(unpacked(lane.items.start)), unpacked(lane.items.length)
    named = unpacked(lane.items.name) == line.names.index(name)
    return (start + length)[named].tolist()  # type: ignore[no-any-return]


# -- the data


def test_the_map_has_the_lateness_of_each_rank_in_each_step_and_the_rank_of_a_cell() -> None:
    own = np.full((600, 20), 100 * MS, np.float32)
    own[431] += 20 * MS
    found = DiagnosedRanks(ranks_diagnosis(), {}, 0, lateness_map(own, np.arange(600) + 7, np.arange(20)))
    figure = figures_of_ranks(found).ranks
    assert figure is not None
    assert figure.lateness is not None
    of = figure.lateness
    cells = unpacked(of.cells).reshape(of.rows, of.columns)
    row = 431 // of.ranks_per_row
    assert (cells[row] - 1) * of.unit_ns == pytest.approx(20 * MS, rel=1e-3)
    assert np.delete(cells, row, axis=0).max() == 1
    assert of.first_ranks[row] + unpacked(of.latest).reshape(of.rows, of.columns)[row, 0] == 438


def test_the_page_of_ten_thousand_ranks_and_a_thousand_steps_is_below_a_megabyte() -> None:
    own = np.random.default_rng(0).normal(100 * MS, 10 * MS, (10_000, 1_000)).astype(np.float32)
    found = DiagnosedRanks(ranks_diagnosis(10_000), {}, 0, lateness_map(own, np.arange(10_000), np.arange(1_000)))
    assert len(render_html(figures_of_ranks(found)).encode()) < 1_000_000


def test_hosts_are_in_the_order_of_what_others_wait_for_them_and_absent_with_one() -> None:
    figure = figures_of_ranks(diagnosed(job())).ranks
    assert figure is not None
    assert len(figure.hosts) == figure.all_hosts == 8
    assert (figure.hosts[0].host, figure.hosts[0].longest_rank) == ("node0", 5)
    alone = figures_of_ranks(diagnosed(job(ranks=8, per_host=8))).ranks
    assert alone is not None
    assert (alone.hosts, alone.all_hosts) == ((), 1)


def test_what_to_open_are_the_late_rank_the_one_that_waits_most_and_an_ordinary_one() -> None:
    found = diagnosed(job("trace ddp", "host"), **{f"rank{rank}": f"t/rank-{rank}.json" for rank in range(64)})
    table = next(table for table in figures_of_ranks(found).tables if table.id == "worth-opening")
    assert [row[2] for row in table.rows] == ["late", "waits most", "ordinary"]
    assert (table.rows[0][0], table.rows[0][-1]) == ("rank 5", "perfkit diagnose t/rank-5.json")
    without = next(table for table in figures_of_ranks(diagnosed(job())).tables if table.id == "worth-opening")
    assert without.note.startswith("No trace of them was recorded")


# -- the time line


def test_the_time_line_has_the_late_rank_an_ordinary_one_and_the_first_in_the_same_steps() -> None:
    line = timeline_of(figures_of_ranks(diagnosed(job())))
    groups = list(dict.fromkeys(lane.group for lane in line.lanes))
    assert groups[0] == "rank 5"
    assert groups[2] == "rank 0"
    steps = [[line.names[code] for code in unpacked(lane.items.name)] for lane in line.lanes if lane.role == "steps"]
    assert len(steps[0]) == 5
    assert steps[0] == steps[1] == steps[2]


def test_of_a_rank_that_is_late_once_the_time_line_has_that_step() -> None:
    phases = np.tile(np.array([20 * MS, 80 * MS]), (40, 1))
    late = phases.copy()
    late[31, 0] += 400 * MS
    waited = np.where(np.arange(40) == 31, 400 * MS, 0)
    ranks = [
        rank_columns(
            0, 40, 0, waited_ns=waited, phases_ns=phases + np.outer(waited, [0, 1]), step_wall_ns=100 * MS + waited
        ),
        rank_columns(1, 40, 0, waited_ns=0 * waited, phases_ns=late, step_wall_ns=100 * MS + waited),
    ]
    found = diagnosed(ranks)
    assert [(one.shape, one.ranks) for one in found.diagnosis.findings] == [("once", (1,))]
    line = timeline_of(figures_of_ranks(found))
    assert {"step 30", "step 31", "step 32"} <= set(line.names)


def test_ranks_on_one_host_keep_their_clock() -> None:
    late = rank_columns(1, 40, 0, waited_ns=np.full(40, 0))
    first = rank_columns(0, 40, 0, waited_ns=np.full(40, 30 * MS), step_start_ns=late.step_start_ns + 3 * MS)
    line = timeline_of(figures_of_ranks(diagnosed([first, late])))
    starts = {lane.group: int(unpacked(lane.items.start)[0]) for lane in line.lanes if lane.role == "steps"}
    assert starts == {"rank 0": 3 * MS, "rank 1": 0}
    assert "same clock" in line.notes[0]


def test_ranks_of_hosts_whose_clocks_are_not_known_meet_at_the_end_of_their_backwards() -> None:
    late = rank_columns(1, 40, 0, waited_ns=np.full(40, 0), host="a")
    hours = 2 * 3600 * 10**9
    first = rank_columns(
        0, 40, 0, waited_ns=np.full(40, 30 * MS), host="b", step_start_ns=late.step_start_ns + hours + 3 * MS
    )
    line = timeline_of(figures_of_ranks(diagnosed([first, late])))
    lanes = {lane.group: lane for lane in line.lanes if lane.label == "phases"}
    # The late rank waits for nobody: its backward ends by itself.
    assert ends_of(lanes["rank 1"], line, "backward") == ends_of(lanes["rank 0"], line, "waits in collectives")
    assert "backwards end together" in line.notes[0]


def test_collectives_end_together_on_aligned_clocks() -> None:
    line = timeline_of(figures_of_ranks(diagnosed(job("trace blocking", "host"))))
    ends = [ends_of(lane, line, line.names[-1]) for lane in line.lanes if lane.label == "collectives"]
    assert len(ends) == 3
    assert len({len(each) for each in ends}) == 1
    # Clocks of these hosts are up to an hour apart.
    assert np.abs(np.array(ends) - ends[0]).max() < MS
    assert "ends of collectives" in line.notes[0]


def test_traces_whose_clocks_cannot_be_aligned_are_not_drawn_and_the_page_says_so() -> None:
    found = diagnosed([replace(one, origin="trace") for one in job(ranks=8, per_host=1)])
    data = figures_of_ranks(found)
    assert data.timeline is None
    assert data.ranks is not None
    assert "could not be aligned" in data.ranks.no_timeline


def test_ranks_without_a_step_in_common_have_no_map_and_no_time_line() -> None:
    apart = [rank_columns(0, 4), replace(rank_columns(1, 4), step_number=np.arange(4) + 100)]
    data = figures_of_ranks(diagnosed(apart))
    assert data.verdict.startswith("Cannot tell")
    assert data.ranks is not None
    assert (data.ranks.lateness, data.timeline) == (None, None)


# -- the page


@pytest.fixture
def page(opened: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def open_page(found: DiagnosedRanks, **options: Any) -> Any:
        return opened(write_html(figures_of_ranks(found), tmp_path / "ranks.html"), **options)

    return open_page


def test_the_page_has_the_verdict_the_map_the_hosts_the_time_line_and_what_to_open(page: Callable[..., Any]) -> None:
    found = diagnosed(job("trace ddp", "host"), rank5="t/rank-5.json")
    seen = page(found)
    assert seen.page.locator(".verdict").text_content() == found.diagnosis.verdict
    shown = seen.page.locator("section[data-section]").evaluate_all("all => all.map(one => one.dataset.section)")
    assert shown == [
        "verdict",
        "where",
        "findings",
        "lateness",
        "hosts",
        "timeline",
        "worth-opening",
        "ranks",
        "missing",
    ]
    assert not seen.page.locator("[role=alert]").count()
    assert "The latest: rank 5, step" in seen.section("lateness").inner_text()
    assert seen.section("hosts").locator("svg[role=img]").count() == 8
    assert "perfkit diagnose t/rank-5.json" in seen.section("worth-opening").inner_text()


def test_the_map_is_read_with_the_keyboard(page: Callable[..., Any]) -> None:
    section = page(diagnosed(job())).section("lateness")
    chart, status = section.locator("svg[tabindex]"), section.locator(".status")
    assert "The latest: rank 5, step" in chart.get_attribute("aria-label")
    chart.focus()
    for key in ("Enter", "Home"):
        chart.press(key)
    assert status.inner_text().startswith("rank 5, step ")
    assert " late (" in status.inner_text()
    chart.press("ArrowDown")
    assert status.inner_text().startswith("rank 6, step ")
    assert status.get_attribute("aria-live") == "polite"


def test_the_page_fits_a_phone_and_names_from_outside_are_text(page: Callable[..., Any]) -> None:
    hostile = "<img src=x onerror=alert(1)>" * 5
    seen = page(
        DiagnosedRanks(ranks_diagnosis(16, host=hostile), {3: f"{hostile}.json"}, 0),
        viewport={"width": 400, "height": 800},
    )
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 400
    assert seen.page.locator("img").count() == 0


def test_without_a_script_the_page_has_the_verdict_and_the_findings(page: Callable[..., Any]) -> None:
    found = diagnosed(job())
    text = page(found, java_script_enabled=False).page.inner_text("main")
    assert found.diagnosis.verdict in text
    assert "look at the loader" in text
