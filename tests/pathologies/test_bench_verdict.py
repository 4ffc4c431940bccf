"""The figures of benchmarks/bench_verdict.py, from runs made by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from in_turns import StepPair
from judging import Answer, Run
from suite import Program

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bench_verdict  # its folder is no package

    yield bench_verdict
    del sys.modules["bench_verdict"]


def verdict(bench: Any, *, low_ns: int, high_ns: int, cost_ns: int = 20) -> Any:
    """A broken program with a step of 100 ns, of which the correction saves 30 ns."""
    diagnosis = {"findings": [{"rule": "input-bound"}], "phases": None}
    broken, fixed = Run(0, diagnosis, 100.0, 80, ""), Run(0, {"findings": [], "phases": None}, 70.0, 80, "")
    found = Answer("input-bound", True, True, "program.py:4", low_ns, high_ns, cost_ns)
    pairs = [StepPair(100.0, 60.0), StepPair(50.0, 40.0)]  # 40 % and 20 %
    return bench.Verdict(
        Program(name="program", folder=Path(), accepted=("input-bound",)), broken, fixed, found, [], pairs
    )


def test_the_score_is_a_share_of_the_step(bench: Any) -> None:
    covered, missed = verdict(bench, low_ns=25, high_ns=35), verdict(bench, low_ns=32, high_ns=40)

    assert (covered.saving_ns, covered.covered, missed.covered) == (pytest.approx(30), True, False)
    assert covered.score == pytest.approx(0.10)  # 10 ns wide
    assert missed.score == pytest.approx(0.08 + 10 * 0.02)  # 8 ns wide, missed by 2 ns


def test_coverage_and_the_mean_score_are_among_the_figures(bench: Any) -> None:
    verdicts = [verdict(bench, low_ns=25, high_ns=35), verdict(bench, low_ns=32, high_ns=40)]

    figures = bench.totals(verdicts)

    assert figures["coverage: measured saving within the interval"] == 0.5
    assert figures["mean interval score over the step"] == pytest.approx(0.19)
    assert figures["median width of the interval over the cost"] == pytest.approx(0.45)
    assert figures["right cause first"] == figures["right line"] == 1.0


def test_an_interval_of_a_wrong_cause_is_not_scored(bench: Any) -> None:
    wrong = verdict(bench, low_ns=25, high_ns=35)
    wrong = wrong._replace(answer=wrong.answer._replace(right_cause=False))

    assert (wrong.score, wrong.covered) == (None, None)
    assert bench.totals([wrong])["mean interval score over the step"] is None


def test_a_verdict_is_a_row_with_the_columns_of_the_head_and_json(bench: Any) -> None:
    got = verdict(bench, low_ns=25, high_ns=35)

    assert bench.row(got).count("|") == bench.HEAD.splitlines()[0].count("|")
    assert json.loads(json.dumps(bench.record(got)))["pairs_ns"] == [[100.0, 60.0], [50.0, 40.0]]
