"""The page's critical path: its stretches on the time line, its owners, and what each change alone would save."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planted_traces"))

from trace_timeline import GEMM_BF16, Timeline

from perfkit.diagnosis import diagnose
from perfkit.reports.figures import FigureData, figures_of, read_figures, write_figures
from perfkit.reports.html import render_html


def step(line: Timeline) -> None:
    with line.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
        line.spend(2_000)
    line.run(GEMM_BF16, 1_000)
    line.read()


@pytest.fixture
def data(tmp_path: Path) -> FigureData:
    file = Timeline(tmp_path).steps(step).write()
    return figures_of(diagnose(file), file)


def test_the_figure_holds_the_path_and_its_stretches_cover_it(data: FigureData, tmp_path: Path) -> None:
    path = data.what_if

    assert path is not None
    assert [one.name for one in path.owners[:2]] == ["loader", "kernels"]
    assert path.owners[0].share == pytest.approx(2 / 3, abs=0.02)
    ends = [start + length for start, length in zip(path.starts, path.lengths, strict=True)]
    assert ends[:-1] == list(path.starts[1:])
    assert ends[-1] == pytest.approx(5 * path.recorded_ns, rel=0.01)
    of_loader = sum(
        ns for ns, owner in zip(path.lengths, path.owner, strict=True) if path.owners[owner].name == "loader"
    )
    assert of_loader / ends[-1] == pytest.approx(2 / 3, abs=0.02)
    assert path.if_free[0].option == "--hide-loader"
    assert read_figures(write_figures(tmp_path, data)) == data


def test_the_page_draws_the_path_and_a_row_for_each_change(
    data: FigureData, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    file = tmp_path / "report.html"
    file.write_text(render_html(data))
    at = opened(file).section("what-if")

    assert at.locator(".path svg rect").count() >= 10
    assert "loader" in at.locator("ul.key").first.inner_text()
    rows = at.locator("table[data-table=if-free] tbody tr")
    assert rows.count() == len(data.what_if.if_free)
    assert rows.nth(0).locator("th").inner_text() == "loader hidden"
    assert "--hide-loader" in rows.nth(0).inner_text()
    assert at.locator("[role=alert]").count() == 0


def test_a_trace_of_nothing_has_no_such_section(tmp_path: Path) -> None:
    line = Timeline(tmp_path, None)
    line.events.append({"ph": "i", "name": "mark", "ts": 1.0, "pid": 1, "tid": 1, "s": "g"})
    file = line.write()

    assert figures_of(diagnose(file), file).what_if is None
