"""Two runs side by side: what changed, and what is only noise."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from perfkit.comparison import compare
from perfkit.diagnosis import Diagnosis, Figures
from perfkit.errors import RunError
from perfkit.findings import Finding
from perfkit.measures.results import StepBreakdown
from perfkit.run.records import Phases, Run, Step

MS = 1_000_000


def write_run(folder: Path, data_ms: float, rest_ms: float, seed: int, steps: int = 60) -> Path:
    """A run folder of steps that flicker by a tenth."""
    noise = random.Random(seed)
    (folder / "rank-0").mkdir(parents=True)
    run = Run(launch_id="x", command=("train.py",), folder=str(folder), world_size=1)
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    rows = []
    for number in range(steps):
        data = round(data_ms * MS * noise.uniform(0.9, 1.1))
        rest = round(rest_ms * MS * noise.uniform(0.9, 1.1))
        rows.append(Step(step=number, start_ns=0, wall_ns=data + rest, phases_ns=Phases(data=data, forward=rest)))
    (folder / "rank-0" / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return folder


def diagnosis(wall_ms: float, *findings: Finding, **figures: float) -> Diagnosis:
    wall_ns = round(wall_ms * MS)
    step = StepBreakdown(
        steps=9, wall_ns=wall_ns, median_ns=wall_ns, p10_ns=wall_ns, p90_ns=wall_ns, phases_ns=Phases(), source="trace"
    )
    return Diagnosis(source="t.json", verdict="", step=step, findings=findings, figures=Figures(**figures))


def finding(rule: str, line: int, file: str = "train.py") -> Finding:
    return Finding(
        rule=rule, severity="warning", message="", advice="", confidence="high", file=file, line=line, function="train"
    )  # fmt: skip


def test_a_faster_data_phase_is_told_and_the_unchanged_rest_is_not(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    after = write_run(tmp_path / "b", data_ms=0.5, rest_ms=30, seed=2)

    comparison = compare(before, after)

    changes = {difference.name: difference.change for difference in comparison.differences}
    assert changes == {"step": "faster", "data": "faster", "forward": "no difference"}
    step = comparison.differences[0]
    assert step.low_ns is not None
    assert step.high_ns is not None
    assert step.low_ns < step.after_ns - step.before_ns < step.high_ns < 0
    assert comparison.verdict == "A step is faster: 50.1 ms before, 30.6 ms after (-39%)."
    assert [finding.rule for finding in comparison.gone] == ["input-bound"]


def test_two_runs_of_the_same_program_do_not_differ(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    after = write_run(tmp_path / "b", data_ms=20, rest_ms=30, seed=2)

    comparison = compare(before, after)

    assert {difference.change for difference in comparison.differences} == {"no difference"}
    assert comparison.verdict.startswith("No difference: ")
    assert (comparison.gone, comparison.new) == ((), ())


def test_the_same_comparison_twice_gives_the_same_answer(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    after = write_run(tmp_path / "b", data_ms=19, rest_ms=30, seed=2)

    assert compare(before, after) == compare(before, after)


def test_too_few_steps_are_not_tested(tmp_path: Path) -> None:
    before = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1, steps=4)
    after = write_run(tmp_path / "b", data_ms=2, rest_ms=30, seed=2)

    assert {difference.change for difference in compare(before, after).differences} == {"not tested"}


def test_diagnoses_hold_no_single_steps_so_nothing_is_tested() -> None:
    comparison = compare(diagnosis(50), diagnosis(40))

    assert comparison.verdict == (
        "A step took 50.0 ms before, 40.0 ms after (-20%); whether that is more than noise was not tested."
    )
    assert comparison.notes


def test_a_finding_that_moved_with_an_edit_or_a_copy_is_the_same_finding() -> None:
    before = diagnosis(50, finding("input-bound", 10, "runs/a/train.py"), finding("sync-in-step", 20))
    after = diagnosis(50, finding("input-bound", 14, "runs/b/train.py"), finding("many-small-ops", 3))

    comparison = compare(before, after)

    assert [finding.rule for finding in comparison.gone] == ["sync-in-step"]
    assert [finding.rule for finding in comparison.new] == ["many-small-ops"]


def test_counts_are_compared_where_both_sides_have_them() -> None:
    comparison = compare(diagnosis(50, syncs_per_step=2.0, ops_per_step=900.0), diagnosis(50, syncs_per_step=0.0))

    assert [(count.name, count.before, count.after) for count in comparison.counts] == [("syncs per step", 2.0, 0.0)]


def test_a_path_that_holds_no_run_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", data_ms=20, rest_ms=30, seed=1)
    (tmp_path / "empty").mkdir()

    with pytest.raises(RunError, match="no run"):
        compare(run, tmp_path / "empty")
