"""Hostile files are refused or read in part: no traceback, no hang, no flood, and nothing unsafe is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.cases import CASES, LONG, UNSAFE, Answer, table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "hostile_input.md"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs named pipes and /proc"),
    pytest.mark.timeout(900),
]


def answers_of(folder: Path, which: str) -> dict[str, Answer]:
    """What perfkit answers to the cases, by their names."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "hostile" / "cases.py"), str(folder), which],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PERFKIT_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [Answer(**one) for one in json.loads(done.stdout)]
    return {f"{one.file}: {one.what}": one for one in found}


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    return answers_of(tmp_path_factory.mktemp("light"), "--light")


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    return answers_of(tmp_path_factory.mktemp("heavy"), "--heavy")


def check(answer: Answer) -> None:
    """A sentence, within limits, and nothing unsafe."""
    assert answer.problem == ""
    assert set(answer.codes.values()) <= {0, 2}
    assert answer.sentence
    assert answer.cpu_s < 10
    assert answer.peak_bytes < 1e9
    assert not UNSAFE.search(answer.text)
    assert len(answer.text) < 200_000


@pytest.mark.parametrize("name", [case.name for case in CASES if not case.is_heavy])
def test_a_hostile_file_is_answered_in_a_sentence_within_limits(light: dict[str, Answer], name: str) -> None:
    check(light[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES if case.is_heavy])
def test_a_large_hostile_file_is(heavy: dict[str, Answer], name: str) -> None:
    check(heavy[name])


@pytest.mark.slow
def test_a_blob_of_a_gigabyte_is_not_loaded(heavy: dict[str, Answer]) -> None:
    assert heavy["an nsys export: a blob of 0.9 GB"].peak_bytes < 500e6


@pytest.mark.slow
@pytest.mark.parametrize("file", ["rank.json", "a Kineto trace"])
def test_text_in_brackets_is_no_markup(heavy: dict[str, Answer], file: str) -> None:
    assert "[bold]" in heavy[f"{file}: {LONG}"].text


@pytest.mark.slow
def test_the_hostile_table_in_docs_is_what_was_answered(light: dict[str, Answer], heavy: dict[str, Answer]) -> None:
    answers = light | heavy

    written = table([answers[case.name] for case in CASES])
    assert DOCS.read_text() == written, "python tests/hostile/cases.py FOLDER --table writes it"
