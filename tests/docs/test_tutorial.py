"""docs/tutorial.md shows what its commands print today, numbers aside."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import read_page
from tests.docs.tutorial import TUTORIAL, follow, shown

#: Its programs train for a minute, and a trial takes up to three.
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

RUN, TRY, AGAIN, COMPARE, PAGE = shown()


def found(verdict: str) -> set[tuple[str, str]]:
    """(rule, file:line) of each finding of a verdict."""
    return set(re.findall(r"^\d ([a-z-]+)  (?:spent at )?(\S+:\d+)", verdict, re.M))


def tried(printed: str) -> list[str]:
    """The change of each row of a trial whose losses agree."""
    return re.findall(r"^(fused-optimizer) +(?:same|as noise) ", printed, re.M)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tutorial")
    outputs = follow(folder)
    assert len(list(folder.glob("runs/*/report.html"))) == 1
    return outputs


def planted() -> set[tuple[str, str]]:
    """The two mistakes of the page's program, at their lines."""
    (program,) = read_page(TUTORIAL).of("file")
    lines = program.text.splitlines()

    def line(text: str) -> str:
        (number,) = (number for number, one in enumerate(lines, start=1) if text in one)
        return f"train.py:{number}"

    return {("input-bound", line("float(number)")), ("unfused-optimizer", line("optimizer.step()"))}


def test_the_verdict_names_both_mistakes_at_their_lines_as_the_page_shows_it(printed: dict[str, str]) -> None:
    assert found(printed[RUN]) == found(shown()[RUN]) == planted()


def test_the_trial_measures_the_change_that_the_page_shows(printed: dict[str, str]) -> None:
    assert tried(printed[TRY]) == tried(shown()[TRY]) != []


@pytest.mark.parametrize("when", ["shown", "printed"])
def test_the_corrected_program_is_faster_and_both_findings_are_gone(printed: dict[str, str], when: str) -> None:
    text = shown()[COMPARE] if when == "shown" else printed[COMPARE]

    assert "A step is faster" in text
    assert set(re.findall(r"no longer found: ([a-z-]+)", text)) == {"input-bound", "unfused-optimizer"}


def test_no_line_of_the_page_is_wider_than_its_terminal() -> None:
    assert all(len(line) <= 80 for output in shown().values() for line in output.splitlines() if "+" not in line)


def test_the_loss_of_the_corrected_program_is_that_of_the_first(printed: dict[str, str]) -> None:
    losses = [re.search(r"^loss (.*)$", printed[command], re.M) for command in (RUN, AGAIN)]

    assert None not in losses
    assert abs(float(losses[0][1]) - float(losses[1][1])) < 0.01  # type: ignore[index]
