"""Every program of the suite gets the right cause first, at the right line; its corrected twin gets no alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_turns import measure
from judging import Answer, Run, alarms, answer, marked_lines, marked_rules, reread, run
from suite import HEALTHY, HERE, PATHOLOGICAL, PROGRAMS, Program

from perfkit import rules

#: Run in every `make test`: seconds each, and one of each sort that a run on a CPU tells apart.
QUICK = {"forward_twice", "sync_item_accuracy", "augment_in_step", "healthy_mlp"}
#: Counts to twice as much as its twin in each step, so half of its step goes.
HALVED = """\
import sys
import torch
import perfkit

for _ in perfkit.steps(range(100)):
    for number in range(200_000 if "--fixed" in sys.argv else 400_000):
        pass
"""
LINES = """\
import torch

for _ in range(3):
    total = sum(  # planted: many-small-ops
        [1, 2]
    )
"""


def cases(programs: tuple[Program, ...]) -> list[Any]:
    """The programs as parameters; all but the quick ones are run by `make test-verdict` only."""
    return [
        pytest.param(program, id=program.name, marks=() if program.name in QUICK else pytest.mark.verdict)
        for program in programs
    ]


def found(*findings: dict[str, Any]) -> Run:
    """A run that ended with these findings."""
    return Run(0, {"findings": list(findings)}, 1e6, 80, "")


def finding(rule: str, file: Path | None = None, line: int | None = None) -> dict[str, Any]:
    nothing = {"saving_low_ns": None, "saving_high_ns": None, "cost_ns": None, "severity": "warning"}
    return {"rule": rule, "file": str(file) if file else None, "line": line, **nothing}


@pytest.mark.parametrize("program", cases(PATHOLOGICAL))
def test_the_planted_cause_comes_first_and_at_its_line(program: Program, tmp_path: Path) -> None:
    got = run(program, tmp_path / "run", fixed=False)

    assert got.code == 0, got.stderr
    told = answer(program, got)
    assert told.right_cause, f"expected {program.rule}, got {told.first}\n{got.stderr}"
    assert told.right_line, f"{told.first} at {told.at}, expected a line of {sorted(marked_lines(program))}"


@pytest.mark.parametrize("program", cases(PROGRAMS))
def test_a_healthy_program_gets_no_alarm(program: Program, tmp_path: Path) -> None:
    got = run(program, tmp_path / "run", fixed=program.rule is not None)

    assert got.code == 0, got.stderr
    assert got.diagnosis is not None, got.stderr
    assert alarms(got) == []


def test_every_script_beside_the_table_is_in_it() -> None:
    others = {"suite", "judging", "in_turns", "conftest", "test_pathologies"}

    assert sorted(program.name for program in PROGRAMS) == sorted(
        path.stem for path in HERE.glob("*.py") if path.stem not in others
    )


def test_the_suite_has_what_the_targets_are_counted_over() -> None:
    assert len(PATHOLOGICAL) >= 32
    assert len(HEALTHY) >= 12
    assert {program.framework for program in PATHOLOGICAL} == {"plain", "lightning", "huggingface"}
    assert sum(program.use == "inference" for program in PATHOLOGICAL) >= 4


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_marks_the_lines_of_its_label_and_of_nothing_else(program: Program) -> None:
    marked = marked_rules(program)

    assert marked == ({program.rule} if program.rule else set())


@pytest.mark.parametrize("program", PATHOLOGICAL, ids=lambda program: program.name)
def test_a_program_has_a_corrected_twin(program: Program) -> None:
    assert '"--fixed" in sys.argv' in program.path.read_text()


def test_no_rule_knows_the_suite() -> None:
    package = Path(rules.__file__).resolve().parent
    text = "\n".join(path.read_text() for path in package.rglob("*.py"))

    assert not [program.name for program in PROGRAMS if program.name in text]
    assert "# planted" not in text


def test_what_a_run_left_can_be_judged_again(tmp_path: Path) -> None:
    program = next(one for one in HEALTHY if one.name == "healthy_mlp")
    got = run(program, tmp_path / "run", fixed=False)

    again = reread(program, tmp_path / "run")

    assert again.diagnosis is not None
    assert again.diagnosis == got.diagnosis
    assert (again.step_ns, again.steps) == (got.step_ns, got.steps)


def test_a_mark_stands_for_its_whole_statement_and_not_for_the_loop_around_it(tmp_path: Path) -> None:
    program = _beside(tmp_path)

    assert marked_lines(program) == {4, 5, 6}


def test_an_answer_is_right_in_cause_but_not_in_line(tmp_path: Path) -> None:
    program = _beside(tmp_path)

    told = answer(program, found(finding("many-small-ops", program.path, 3), finding("input-bound")))

    assert told == Answer("many-small-ops", True, False, "program.py:3", None, None, None)


def test_a_line_of_the_wrong_cause_is_not_right(tmp_path: Path) -> None:
    program = _beside(tmp_path)

    told = answer(program, found(finding("input-bound", program.path, 4)))

    assert (told.right_cause, told.right_line) == (False, False)


def test_what_a_correction_gains_is_measured_in_turns_on_whatever_machine(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HALVED)

    gain = measure(Program("program", "many-small-ops", folder=tmp_path), tmp_path / "run")

    assert gain.share == pytest.approx(0.5, abs=0.2)


def test_no_gain_is_measured_where_a_program_has_no_steps(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("pass\n")

    assert measure(Program("program", "many-small-ops", folder=tmp_path), tmp_path / "run").share is None


def _beside(folder: Path) -> Program:
    """A program of the test's own."""
    (folder / "program.py").write_text(LINES)
    return Program("program", "many-small-ops", folder=folder)
