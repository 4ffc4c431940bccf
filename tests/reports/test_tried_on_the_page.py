"""The page of a run whose advice was tried: savings with their intervals, the patch, and a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.diagnosis import Diagnosis
from perfkit.reports.figures import FigureData, figures_of, read_figures, write_figures
from perfkit.reports.html import render_html
from perfkit.run.records import LossCheck, Phases, Step, Sweep, SweepPoint, Trial, TriedChange

MS = 1_000_000
PATCH = """--- a/train.py
+++ b/train.py
@@ -12,2 +12,2 @@
 data = Reviews()
-loader = DataLoader(data, batch_size=32)
+loader = DataLoader(data, batch_size=32, num_workers=4)
"""


def trial() -> Trial:
    same = LossCheck(outcome="same", sentence="same loss")
    workers = TriedChange(
        names=("workers=4",), outcome="faster", sentence="saves 41%", saving=0.41, ci=(0.38, 0.44), before_ns=80 * MS,
        after_ns=47 * MS, predicted=(0.25, 0.56), loss=same,
    )  # fmt: skip
    return Trial(
        program="train.py --epochs 3",
        verdict="1.8x as fast (95 % interval 1.7x to 1.9x), same loss, with workers=4.",
        floor=0.02,
        changes=(
            workers,
            TriedChange(
                names=("fused-optimizer",), outcome="no-difference", sentence="nothing", saving=0.004,
                ci=(-0.006, 0.013), before_ns=80 * MS, after_ns=80 * MS, loss=same,
            ),
            TriedChange(
                names=("compile",), kind="numeric", outcome="slower", sentence="costs 9%", saving=-0.09,
                ci=(-0.12, -0.06), before_ns=80 * MS, after_ns=87 * MS, pays_after=900,
                loss=LossCheck(outcome="differs", sentence="the result differs at step 3"),
            ),
            TriedChange(names=("channels-last",), outcome="no-effect", sentence="the program has no convolutions"),
        ),
        patch=PATCH,
        unpatched=("compile: its line was not found",),
        notes=("The program is not deterministic.",),
        seconds=83.0,
    )  # fmt: skip


def sweep() -> Sweep:
    def point(value: int, per_s: float) -> SweepPoint:
        return SweepPoint(
            value=value, step_ns=round(value / per_s * 1e9), per_s=per_s, low=0.97 * per_s, high=1.03 * per_s,
            peak_bytes=10**9, left_bytes=2 * 10**9,
        )  # fmt: skip

    return Sweep(
        program="train.py",
        verdict="batch-size=64 is the smallest within 5% of the best throughput.",
        own=32,
        points=(
            point(16, 400), point(32, 700), point(64, 980), point(128, 1000),
            SweepPoint(value=256, outcome="out-of-memory"),
        ),
        memory="device",
        reserve=0.1,
        recommended=64,
    )  # fmt: skip


@pytest.fixture
def tried(tmp_path: Path) -> Path:
    """A run folder with the results of `perfkit try`."""
    folder = tmp_path / "run"
    (folder / "rank-0").mkdir(parents=True)
    row = Step(step=0, start_ns=0, wall_ns=80 * MS, phases_ns=Phases())
    (folder / "rank-0" / "steps.jsonl").write_bytes(msgspec.json.encode(row) + b"\n")
    (folder / "trial.json").write_text(trial().to_json())
    (folder / "sweep.json").write_text(sweep().to_json())
    return folder


@pytest.fixture
def data(diagnosis: Diagnosis, tried: Path) -> FigureData:
    return figures_of(diagnosis, tried)


@pytest.fixture
def seen(data: FigureData, tmp_path: Path, opened: Callable[..., Any]) -> Any:
    file = tmp_path / "report.html"
    file.write_text(render_html(data))
    return opened(file)


def test_a_run_whose_advice_was_tried_has_the_figures_of_it(data: FigureData, tmp_path: Path) -> None:
    assert data.trial is not None
    assert data.sweep is not None
    assert [one.name for one in data.trial.changes] == ["workers=4", "fused-optimizer", "compile", "channels-last"]
    assert data.trial.changes[2].notes == ("pays after 900 steps", "the result differs at step 3")
    assert data.trial.patch == tuple(PATCH.splitlines())
    assert read_figures(write_figures(tmp_path, data)) == data


def test_a_run_that_was_not_tried_has_no_such_section(
    diagnosis: Diagnosis, tried: Path, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    (tried / "trial.json").unlink()
    (tried / "sweep.json").unlink()
    file = tmp_path / "report.html"
    file.write_text(render_html(figures_of(diagnosis, tried)))

    assert opened(file).section("tried").count() == 0


@pytest.mark.parametrize("text", ["{}", '{"schema": 99, "program": "", "verdict": ""}', '{"schema": 1}', "\x00"])
def test_results_that_cannot_be_read_are_named_and_the_rest_is_drawn(
    diagnosis: Diagnosis, tried: Path, text: str
) -> None:
    (tried / "trial.json").write_text(text)
    data = figures_of(diagnosis, tried)

    assert data.trial is None
    assert data.sweep is not None
    assert [sentence for sentence in data.missing if sentence.startswith("trial.json ")]


def test_a_saving_is_a_bar_with_its_interval_as_whiskers_and_the_prediction_beside_it(seen: Any) -> None:
    at = seen.section("tried")
    rows = at.locator("tbody tr")

    assert rows.nth(0).locator("td").all_inner_texts()[1:7] == [
        "41%", "38% to 44%", "25% to 56%", "80.0 ms", "47.0 ms", "same",
    ]  # fmt: skip
    assert [rows.nth(at).locator("td").nth(1).inner_text() for at in (1, 2)] == ["nothing seen", "-9.0%"]
    drawn = rows.nth(0).locator("svg")
    width = {
        kind: float(drawn.locator(f"rect.{kind}").get_attribute("width"))
        for kind in ("k-at-limit", "predicted", "floor")
    }
    assert width["predicted"] / width["k-at-limit"] == pytest.approx(0.31 / 0.41, rel=0.01)
    assert width["floor"] / width["k-at-limit"] == pytest.approx(0.04 / 0.41, rel=0.01)
    whiskers = drawn.locator("path.tick").evaluate("one => one.getBBox().width")
    assert whiskers / width["k-at-limit"] == pytest.approx(0.06 / 0.41, rel=0.01)
    assert rows.nth(2).locator("rect.k-claimed").count() == 1
    assert rows.count() == 3
    assert "channels-last: the program has no convolutions" in at.inner_text()
    assert "compile: pays after 900 steps; the result differs at step 3" in at.inner_text()
    assert "Two unchanged runs differ by 2.0%" in at.inner_text()


def test_the_patch_is_shown_as_it_is_written(seen: Any) -> None:
    patch = seen.section("tried").locator("pre.patch")

    assert [line for line in patch.inner_text().splitlines() if line] == PATCH.splitlines()
    assert patch.locator(".added").inner_text().strip() == PATCH.splitlines()[-1]
    assert "compile: its line was not found" in seen.section("tried").inner_text()


def test_a_sweep_is_drawn_as_throughput_by_batch(seen: Any) -> None:
    at = seen.section("sweep")
    dots = at.locator("circle").evaluate_all(
        "all => all.map(one => [+one.getAttribute('cx'), +one.getAttribute('cy')])"
    )

    assert len(dots) == 4
    assert [x for x, _ in dots] == sorted(x for x, _ in dots)
    assert [y for _, y in dots] == sorted((y for _, y in dots), reverse=True)
    assert at.locator("circle.k-at-limit").count() == 1
    rows = at.locator("tbody tr")
    assert rows.nth(2).locator("td").first.inner_text() == "recommended"
    assert rows.nth(4).locator("td").first.inner_text() == "out-of-memory"


def test_hostile_texts_of_a_trial_are_texts(
    diagnosis: Diagnosis, tried: Path, hostile: list[str], tmp_path: Path, opened: Callable[..., Any]
) -> None:
    bad = msgspec.structs.replace(
        trial(),
        changes=tuple(
            TriedChange(names=(text,), outcome="faster", sentence=text, saving=0.1, ci=(0.0, 0.2)) for text in hostile
        ),
        patch="\n".join(hostile),
        unpatched=tuple(hostile),
        notes=tuple(hostile),
        verdict=hostile[0],
    )
    (tried / "trial.json").write_text(bad.to_json())
    file = tmp_path / "report.html"
    file.write_text(render_html(figures_of(diagnosis, tried)))
    at = opened(file).section("tried")

    assert at.locator("tbody tr").count() == 100  # of 123
    assert at.locator("img, script, a, iframe").count() == 0


def test_a_narrow_page_does_not_scroll_sideways(data: FigureData, tmp_path: Path, opened: Callable[..., Any]) -> None:
    file = tmp_path / "report.html"
    file.write_text(render_html(data))
    page = opened(file, viewport={"width": 380, "height": 800}).page

    assert page.evaluate("() => document.documentElement.scrollWidth") <= 380
