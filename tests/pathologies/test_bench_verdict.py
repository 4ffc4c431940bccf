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

from perfkit.run.records.trial import Trial, TriedChange, TriedOutcome

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bench_verdict  # its folder is no package

    yield bench_verdict
    del sys.modules["bench_verdict"]


def said(outcome: str) -> dict[str, Any]:
    """A diagnosis of that outcome."""
    return {"findings": [], "phases": None, "outcome": outcome}


def verdict(bench: Any, *, low_ns: int = 25, high_ns: int = 35, outcome: str = "findings") -> Any:
    """A broken program with a step of 100 ns, of which the correction saves 30 ns."""
    broken, fixed = Run(0, said(outcome), 100.0, 80, ""), Run(0, said("healthy"), 70.0, 80, "")
    found = Answer("input-bound", True, True, True, None, "program.py:4", "program.py:2", low_ns, high_ns, 20)
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
    assert figures["right cause first"] == figures["right spent line"] == 1.0
    assert figures["right change line"] is None  # the label says that it is outside the program


def test_healthy_is_a_false_all_clear_where_the_correction_saves_much(bench: Any) -> None:
    healthy = verdict(bench, outcome="healthy")
    little = healthy._replace(pairs=[StepPair(100.0, 90.0)])
    not_measured = healthy._replace(pairs=[])

    assert [v.false_all_clear for v in (healthy, little, not_measured)] == [True, False, False]
    assert not verdict(bench, outcome="unexplained").false_all_clear


def test_alarms_are_counted_in_runs_per_alarm(bench: Any) -> None:
    quiet = verdict(bench)
    alarmed = quiet._replace(alarms=["many-small-ops", "input-bound at program.py:4"])

    figures = bench.totals([quiet, quiet, quiet, alarmed])

    assert (figures["false alarms"], figures["false alarms, 1 in"]) == (1, 4.0)
    assert bench.totals([quiet])["false alarms, 1 in"] is None


def test_the_tables_of_a_half_have_a_line_for_each_figure_and_each_kind(bench: Any) -> None:
    third = verdict(bench)._replace(program=Program(name="other", folder=Path(), accepted=("growing-step",), kind=7))

    lines = list(bench.summary([verdict(bench), third]))

    assert len([line for line in lines if line.startswith(("| plain |", "| 7 |"))]) == 2
    kinds = lines[len(lines) - lines[::-1].index("") :]
    assert len({line.count("|") for line in kinds}) == 1


def test_a_program_is_covered_by_the_residuals_of_the_others(bench: Any) -> None:
    near = [verdict(bench, low_ns=25, high_ns=35) for _ in range(6)]
    far = verdict(bench, low_ns=1, high_ns=2)

    assert bench.left_out([*near, far]) == [True] * 6 + [False]


def test_an_interval_of_a_wrong_cause_is_not_scored(bench: Any) -> None:
    wrong = verdict(bench, low_ns=25, high_ns=35)
    wrong = wrong._replace(answer=wrong.answer._replace(right_cause=False))

    assert (wrong.score, wrong.covered) == (None, None)
    assert bench.totals([wrong])["mean interval score over the step"] is None


def test_a_verdict_is_a_row_with_the_columns_of_the_head_and_json(bench: Any) -> None:
    got = verdict(bench, low_ns=25, high_ns=35)

    assert bench.row(got).count("|") == bench.HEAD.splitlines()[0].count("|")
    assert json.loads(json.dumps(bench.record(got)))["pairs_ns"] == [[100.0, 60.0], [50.0, 40.0]]


def test_a_program_whose_library_is_missing_is_reported_and_not_judged(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(name="needs", folder=tmp_path / "judging")
    program.folder.mkdir()
    program.path.write_text("import json\nfrom no_such_library.nn import Layer\n")
    monkeypatch.setattr(bench, "PROGRAMS", (program,))

    bench.main(["--json", str(tmp_path / "out.json")])

    assert "Not run: needs needs no_such_library" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["judging"]["not_run"] == {"needs": ["no_such_library"]}


def test_what_was_tried_is_compared_with_what_was_predicted(bench: Any, tmp_path: Path) -> None:
    def tried(name: str, saving: float | None, outcome: TriedOutcome = "faster") -> TriedChange:
        return TriedChange(names=(name,), rules=("input-bound",), outcome=outcome, saving=saving, predicted=(0.2, 0.5))

    changes = (tried("workers=1", 0.1), tried("workers=2", 0.3), tried("pinned", None), tried("eval", 0.4, "computed"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trial.json").write_text(Trial(program="train.py", verdict="", changes=changes).to_json())

    lines = list(bench.trials(tmp_path))

    assert "| train.py | workers | data | 0.200 to 0.500 | 0.300 | yes |" in lines
    assert "Within the interval: 1.00 of 1." in lines


def test_a_folder_without_trials_is_an_error(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--trials", str(tmp_path)])

    assert "run `perfkit try` there" in capsys.readouterr().err
