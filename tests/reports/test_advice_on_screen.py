"""What a verdict shows of its advice: the edit as a diff, files without their folders, and what to type next."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from perfkit._location import Location
from perfkit.diagnosis import Diagnosis
from perfkit.findings import AdvisedEdit
from perfkit.reports.advised_diffs import advised_diff
from perfkit.reports.figures import figures_of
from perfkit.reports.next_step import TRIED, next_step
from perfkit.reports.source_files import SourceFiles
from perfkit.reports.terminal import print_diagnosis, print_first_verdict
from perfkit.run.rank_writer import write_record
from perfkit.run.records import Run
from perfkit.trial.catalog import find_changes

SOURCE = """\
from torch.utils.data import DataLoader
def main(dataset):
    loader = DataLoader(dataset, batch_size=4)
    both = DataLoader(dataset), DataLoader(dataset)
    other = make(dataset)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "loading.py"
    file.write_text(SOURCE)
    return file


def edited(diagnosis: Diagnosis, file: Path, line: int, **arguments: object) -> Diagnosis:
    """The diagnosis whose first finding advises an edit of a DataLoader on this line."""
    edit = AdvisedEdit.of(Location(file=str(file), line=line, function="DataLoader(...)"), **arguments)
    first = msgspec.structs.replace(diagnosis.findings[0], edit=edit)
    return msgspec.structs.replace(diagnosis, findings=(first, *diagnosis.findings[1:]))


def test_the_terminal_shows_the_edit_as_a_diff_of_its_line(
    diagnosis: Diagnosis, program: Path, written: Callable[..., str]
) -> None:
    text = written(print_diagnosis, edited(diagnosis, program, 3, num_workers=4), width=120)

    assert "    - loader = DataLoader(dataset, batch_size=4)\n" in text
    assert "    + loader = DataLoader(dataset, batch_size=4, num_workers=4)\n" in text
    assert f"    {program.name}:3\n" in text


def test_the_page_has_the_same_diff(diagnosis: Diagnosis, program: Path) -> None:
    found = figures_of(edited(diagnosis, program, 3, pin_memory=True)).findings[0]

    assert found.diff == (
        "- loader = DataLoader(dataset, batch_size=4)",
        "+ loader = DataLoader(dataset, batch_size=4, pin_memory=True)",
    )
    assert found.sure == "measured directly"


@pytest.mark.parametrize("line", [1, 4, 5, 99])
def test_a_line_without_exactly_that_call_has_no_diff(diagnosis: Diagnosis, program: Path, line: int) -> None:
    finding = edited(diagnosis, program, line, num_workers=4).findings[0]

    assert advised_diff(finding, SourceFiles()) is None


def test_only_python_files_are_read_for_a_diff(diagnosis: Diagnosis, tmp_path: Path) -> None:
    """A diagnosis from outside may name any file."""
    secret = tmp_path / "secret"
    secret.write_text(SOURCE)
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)

    for file in (secret, pipe, tmp_path):
        assert advised_diff(edited(diagnosis, file, 3, num_workers=4).findings[0], SourceFiles()) is None


def test_an_argument_that_is_no_name_is_not_written(diagnosis: Diagnosis, program: Path) -> None:
    edit = AdvisedEdit(
        at=Location(file=str(program), line=3), call="DataLoader", arguments={"x=1, y": "2", "__import__('os')": "1"}
    )
    finding = msgspec.structs.replace(diagnosis.findings[0], edit=edit)

    assert advised_diff(finding, SourceFiles()) is None


def test_folders_are_named_once(diagnosis: Diagnosis, tmp_path: Path, written: Callable[..., str]) -> None:
    folder = str(tmp_path / "experiments")
    placed = tuple(
        msgspec.structs.replace(one, spent=msgspec.structs.replace(one.spent, file=f"{folder}/{one.spent.file}"))
        for one in diagnosis.findings
        if one.spent is not None
    )
    verdict = f"Fix input-bound at {folder}/train.py:31 first."

    text = written(print_diagnosis, msgspec.structs.replace(diagnosis, findings=placed, verdict=verdict), width=300)

    assert text.count(folder) == 1
    assert "Fix input-bound at train.py:31 first." in text
    assert "1 input-bound  train.py:31 " in text


def test_files_of_one_name_keep_their_folders(diagnosis: Diagnosis, written: Callable[..., str]) -> None:
    first, second, *_ = diagnosis.findings
    one = msgspec.structs.replace(first, spent=Location(file="a/train.py", line=1))
    other = msgspec.structs.replace(second, spent=Location(file="b/train.py", line=2))

    text = written(print_diagnosis, msgspec.structs.replace(diagnosis, findings=(one, other)), width=200)

    assert "a/train.py:1" in text
    assert "b/train.py:2" in text


# -- what to type next


def test_the_rules_that_a_trial_answers_are_those_of_the_catalogue() -> None:
    assert {rule for change in find_changes().values() for rule in change.answers} == TRIED


def test_a_run_of_a_program_is_tried_next(diagnosis: Diagnosis, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    command = ("train it.py", "--epochs", "3")
    write_record(folder, Run(launch_id="x", command=command, folder=".", world_size=1))
    of_run = msgspec.structs.replace(diagnosis, source=str(folder))

    assert next_step(of_run) == "perfkit try 'train it.py' --epochs 3 measures what the advice saves"


def test_without_a_program_the_rule_is_explained_and_without_findings_a_page_is_drawn(diagnosis: Diagnosis) -> None:
    assert next_step(diagnosis) == "perfkit explain input-bound says how to correct it"
    assert next_step(msgspec.structs.replace(diagnosis, findings=())).startswith("perfkit diagnose runs/train --html")
    told = msgspec.structs.replace(diagnosis, outcome="cannot-tell")
    assert next_step(told) == "perfkit explain cannot-tell says what to record instead"


def test_the_first_verdict_leaves_the_findings_to_the_end_and_says_how_to_read_them_now(
    diagnosis: Diagnosis, written: Callable[..., str]
) -> None:
    first = written(print_first_verdict, diagnosis)
    final = written(print_diagnosis, diagnosis)

    assert first.splitlines()[0] == "perfkit: first verdict, while training continues"
    assert first.splitlines()[1] in final
    assert first.splitlines()[-1] == "Its findings follow at the end; now: perfkit diagnose runs/train"
    assert "1 input-bound" not in first
    assert "→" not in first
    assert "1 input-bound" in final
    assert final.splitlines()[-1].startswith("Next: ")
    assert "perfkit diagnose" not in written(print_first_verdict, msgspec.structs.replace(diagnosis, findings=()))
