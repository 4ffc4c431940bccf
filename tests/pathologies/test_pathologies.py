"""The labelled suite: the right cause first, at the right line, and no alarm for a corrected twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from in_turns import measure
from judging import Run, Target, alarms, answer, marked_lines, marked_rules, outcome, reread, run
from suite import HALVES, HEALTHY, HERE, PATHOLOGICAL, PROGRAMS, Half, Program

from perfkit import rules
from perfkit.trial.catalog import parse_changes

#: Run in every `make test`: one of each kind that a run on a CPU distinguishes, at some seconds each.
QUICK = {"forward_twice", "sync_item_accuracy", "augment_in_step", "healthy_mlp"}
#: Counts to twice the number of its twin in each step, so the correction saves half of the step.
#: It sleeps: a machine with other load on it computes half as fast in some turns, and sleeps as long in all.
HALF_IS_SAVED = """\
import sys
import time
import torch
import perfkit

for _ in perfkit.steps(range(200)):
    time.sleep(0.01 if "--fixed" in sys.argv else 0.02)
"""
LINES = """\
import torch

for _ in range(3):
    total = sum(  # spent: many-small-ops
        [1, 2]
    )
    total += 1  # change: many-small-ops
"""


def cases(programs: tuple[Program, ...]) -> list[Any]:
    """The programs as parameters; all but the quick ones are run by `make test-verdict` only."""
    return [
        pytest.param(program, id=program.name, marks=() if program.name in QUICK else pytest.mark.verdict)
        for program in programs
    ]


def run_with(*findings: dict[str, Any]) -> Run:
    """A run with these findings."""
    return Run(0, {"findings": list(findings)}, 1e6, 80, "")


def finding(rule: str, spent: int | None = None, change: int | None = None) -> dict[str, Any]:
    """A finding as it stands in diagnosis.json."""
    not_quantified = {"saving_low_ns": None, "saving_high_ns": None, "cost_ns": None}
    return {"rule": rule, "severity": "warning", "spent": place(spent), "change": place(change), **not_quantified}


def place(line: int | None) -> dict[str, Any] | None:
    """A location in program.py as it stands in diagnosis.json."""
    return {"file": "program.py", "line": line, "function": None, "owner": "user"} if line else None


@pytest.mark.alone
@pytest.mark.parametrize("program", cases(PATHOLOGICAL))
def test_the_planted_cause_comes_first_and_at_its_line(program: Program, tmp_path: Path) -> None:
    got = run(program, tmp_path / "run", fixed=False)

    assert got.code == 0, got.stderr
    found = answer(program, got)
    assert found.right_cause, f"expected {program.rule}, got {found.first}\n{got.stderr}"
    assert found.right_spent is not False, f"{found.spent}, expected one of {marked_lines(program, 'spent')}"
    assert found.right_change is not False, f"{found.change}, expected one of {marked_lines(program, 'change')}"


@pytest.mark.parametrize("program", cases(PROGRAMS))
def test_a_healthy_program_gets_no_alarm(program: Program, tmp_path: Path) -> None:
    got = run(program, tmp_path / "run", fixed=program.rule is not None)

    assert got.code == 0, got.stderr
    assert got.diagnosis is not None, got.stderr
    assert alarms(got) == []


@pytest.mark.parametrize("half", HALVES)
def test_a_half_has_a_label_for_each_of_its_scripts(half: Half) -> None:
    assert sorted(program.path for program in PROGRAMS if program.half == half) == sorted((HERE / half).glob("*.py"))


def test_no_program_is_in_both_halves() -> None:
    names = [program.name for program in PROGRAMS]

    assert sorted(set(names)) == sorted(names)
    texts = [program.path.read_bytes() for program in PROGRAMS]
    assert len(set(texts)) == len(texts)


def test_the_suite_has_programs_of_every_kind() -> None:
    assert len(PATHOLOGICAL) >= 80
    assert len(HEALTHY) >= 18
    # Kind 2 is about traces: its examples are in tests/traces.
    assert {program.kind for program in PROGRAMS} == {None, *range(1, 14)} - {2}
    assert {program.framework for program in PATHOLOGICAL} == {"plain", "lightning", "huggingface"}
    assert sum(program.use == "inference" for program in PATHOLOGICAL) >= 4


@pytest.mark.parametrize("target", get_args(Target))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_marks_the_lines_of_its_cause_unless_its_label_says_where_they_are(
    program: Program, target: Target
) -> None:
    expected = {program.rule} if program.rule and target not in program.outside else set()

    assert marked_rules(program, target) == expected


@pytest.mark.parametrize("program", PATHOLOGICAL, ids=lambda program: program.name)
def test_a_program_has_a_corrected_twin(program: Program) -> None:
    assert '"--fixed"' in program.path.read_text()


@pytest.mark.parametrize("program", PATHOLOGICAL, ids=lambda program: program.name)
def test_the_change_that_a_twin_is_compared_with_is_in_the_catalogue(program: Program) -> None:
    assert not program.tried_with or str(parse_changes([program.tried_with])[0]) == program.tried_with


def test_no_rule_knows_the_suite() -> None:
    package = Path(rules.__file__).resolve().parent
    text = "\n".join(path.read_text() for path in package.rglob("*.py"))

    assert not [program.name for program in PROGRAMS if program.name in text]
    assert "# spent:" not in text


def test_a_recorded_run_can_be_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = next(one for one in HEALTHY if one.name == "healthy_mlp")
    monkeypatch.chdir(program.folder)  # where it ran: texts name places from here
    got = run(program, tmp_path / "run", fixed=False)

    again = reread(program, tmp_path / "run")

    assert again.diagnosis is not None
    assert got.diagnosis is not None
    # What perfkit cost is known once the program has ended, after the verdict.
    assert {**again.diagnosis, "overhead": None} == {**got.diagnosis, "overhead": None}
    assert (again.step_ns, again.steps) == (got.step_ns, got.steps)


def test_a_mark_means_its_whole_statement_but_not_the_loop_around_it(tmp_path: Path) -> None:
    program = program_in(tmp_path)

    assert (marked_lines(program, "spent"), marked_lines(program, "change")) == ({4, 5, 6}, {7})


@pytest.mark.parametrize(
    ("spent", "change", "right"),
    [
        (5, 7, (True, True)),
        (3, 7, (False, True)),
        (5, 3, (True, False)),
        (5, None, (True, False)),  # the change is where the time is spent
        (None, None, (False, False)),
    ],
)
def test_both_places_of_a_right_cause_are_compared(
    tmp_path: Path, spent: int | None, change: int | None, right: tuple[bool, bool]
) -> None:
    judged = answer(program_in(tmp_path), run_with(finding("many-small-ops", spent, change)))

    assert judged.right_cause
    assert (judged.right_spent, judged.right_change) == right


def test_a_place_outside_the_program_is_not_judged(tmp_path: Path) -> None:
    program = msgspec.structs.replace(program_in(tmp_path), outside={"change": "it is an option of the launcher"})

    judged = answer(program, run_with(finding("many-small-ops", 3)))

    assert (judged.right_spent, judged.right_change) == (False, None)


def test_the_right_line_of_a_wrong_cause_does_not_count(tmp_path: Path) -> None:
    judged = answer(program_in(tmp_path), run_with(finding("input-bound", 4, 7)))

    assert (judged.right_cause, judged.in_three, judged.right_spent, judged.right_change) == (False,) * 4


def test_the_first_three_findings_are_searched_for_the_cause(tmp_path: Path) -> None:
    others, right = [finding("input-bound"), finding("gc-pauses")], finding("many-small-ops", 4)

    assert answer(program_in(tmp_path), run_with(*others, right)).in_three
    assert not answer(program_in(tmp_path), run_with(*others, finding("float64-in-step"), right)).in_three


def test_a_program_without_a_diagnosis_got_no_answer() -> None:
    assert outcome(Run(1, None, None, 0, "")) == "cannot-tell"


def test_a_saving_is_measured_in_turns_whatever_else_runs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HALF_IS_SAVED)

    pair = measure(Program(name="program", accepted=("many-small-ops",), folder=tmp_path), tmp_path / "run")

    assert pair.saved_share == pytest.approx(0.5, abs=0.1)


def test_no_saving_is_measured_for_a_program_without_steps(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("pass\n")

    assert (
        measure(Program(name="program", accepted=("many-small-ops",), folder=tmp_path), tmp_path / "run").saved_share
        is None
    )


def program_in(folder: Path) -> Program:
    """A small program with a marked statement."""
    (folder / "program.py").write_text(LINES)
    return Program(name="program", accepted=("many-small-ops",), folder=folder)
