"""Hostile files are refused or read in part: no traceback, no hang, no flood, and nothing unsafe is shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.cases import CASES, LONG, Answer, table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "hostile_input.md"
#: What may reach no terminal and no page; a line feed ends a line of perfkit's own.
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs named pipes and /proc")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What perfkit answers to each case, by its file and what is in it."""
    folder = tmp_path_factory.mktemp("hostile")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "hostile" / "cases.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PERFKIT_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [Answer(**one) for one in json.loads(done.stdout)]
    return {f"{one.file}: {one.what}": one for one in found}


@pytest.mark.parametrize("name", [f"{case.file}: {case.what}" for case in CASES])
def test_a_hostile_file_is_answered_in_sentences_within_limits(answers: dict[str, Answer], name: str) -> None:
    answer = answers[name]

    assert answer.problem == ""
    assert set(answer.codes.values()) <= {0, 2}
    assert answer.sentence
    assert answer.cpu_s < 10
    assert answer.peak_bytes < 1e9
    assert not UNSAFE.search(answer.text)
    assert len(answer.text) < 200_000


def test_a_blob_of_a_gigabyte_is_not_loaded(answers: dict[str, Answer]) -> None:
    assert answers["an nsys export: a blob of 0.9 GB"].peak_bytes < 500e6


@pytest.mark.parametrize("file", ["rank.json", "a Kineto trace"])
def test_text_in_brackets_is_no_markup(answers: dict[str, Answer], file: str) -> None:
    assert "[bold]" in answers[f"{file}: {LONG}"].text


def test_the_hostile_table_in_docs_is_what_was_answered(answers: dict[str, Answer]) -> None:
    assert DOCS.read_text() == table(list(answers.values())), "python tests/hostile/cases.py FOLDER --table writes it"
