"""``perfkit which``: questions find their tool, WHICH.md is generated from the table, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfkit
from perfkit.commands import command_line, main
from perfkit.record.triggers.trigger_settings import KINDS
from perfkit.reports.tables import find_tables
from perfkit.rules._engine import find_rules
from perfkit.trial.catalog import find_changes
from perfkit.which import ANSWERS, as_markdown, find_answers


def test_every_entry_finds_itself() -> None:
    for answer in ANSWERS:
        assert find_answers(answer.question)[0].answer is answer


@given(st.text(max_size=80))
def test_any_text_gets_up_to_three_answers_the_best_first(text: str) -> None:
    fits = [match.fit for match in find_answers(text)]

    assert len(fits) <= 3
    assert fits == sorted(fits, reverse=True)
    assert fits[:1] in ([], [1.0])


@pytest.mark.parametrize("question", ["my training is slow", "slow", "training is slow, help!"])
def test_the_simplest_question_finds_its_answer(question: str) -> None:
    assert find_answers(question)[0].answer.question.startswith("Why is my training slow")


def test_the_order_and_the_case_of_words_do_not_matter() -> None:
    matches = find_answers("GPU is idle, half the TIME?")

    assert matches == find_answers("time the half idle is gpu")
    assert matches[0].answer.question == "My GPU is idle half of the time"


@pytest.mark.parametrize(
    "question", ["what is the weather tomorrow", "bake a chocolate cake", "price of a gpu", "?!", "asdf qwer", ""]
)
def test_a_question_without_an_entry_gets_what_to_type_instead(
    question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["which", question]) == 0

    out = capsys.readouterr().out
    assert out.startswith("No entry fits this question.")
    assert "as in: perfkit which my dataloader is slow" in " ".join(out.split())
    assert find_answers("my dataloader is slow")
    assert not any(answer.question in out for answer in ANSWERS)


def test_without_a_question_all_entries_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which"]) == 0

    out = capsys.readouterr().out
    assert all(f"  {answer.question}\n      {answer.tool}\n" in out for answer in ANSWERS)
    assert max(len(line) for line in out.splitlines()) <= 80


def test_an_answer_has_the_command_what_to_look_for_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which", "my", "GPU", "is", "idle", "half", "of", "the", "time"]) == 0

    out = capsys.readouterr().out
    answer = find_answers("my GPU is idle half of the time")[0].answer
    assert f"\n  {answer.command}\n" in out
    commands = {found.command for found in ANSWERS}
    assert all(len(line) <= 80 for line in out.splitlines() if line.strip() not in commands)
    for part in (f"Look for: {answer.look_for}", f"Why this one: {answer.why}"):
        assert part in " ".join(out.split())


def test_the_next_best_entries_are_shown_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which", "is", "nccl", "slow"]) == 0

    first, *others = [match.answer for match in find_answers("is nccl slow")]
    shown, _, after = capsys.readouterr().out.partition("\nThe next best entries:\n")
    assert shown.startswith(first.question)
    assert others
    assert after == "".join(f"  {answer.question}\n      {answer.command}\n" for answer in others)


def test_the_page_is_generated_from_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(perfkit.__file__).parent / "WHICH.md").read_text("utf-8")

    assert main(["which", "--markdown"]) == 0
    assert capsys.readouterr().out == page == as_markdown(), "perfkit which --markdown > perfkit/WHICH.md"


def test_markdown_refuses_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["which", "--markdown", "idle"]) == 2
    assert "give no question with it" in capsys.readouterr().err


#: Options whose values have names, and the names that exist.
NAMED_VALUES = {
    "--table": set(find_tables()),
    "--trigger": set(KINDS),
    "--sweep": {"batch-size", "workers"},
    "--fail-on": {rule.id for rule in find_rules()},
    "--without": {"sync", "copy-waits", "launch-overhead", "exposed-communication", "rank-waits"},
    "--only": {name.partition("=")[0] for name in find_changes()},
}


def commands_of_perfkit() -> list[tuple[str, str]]:
    """Each command of perfkit that an entry names, in its command or between backticks, and what stands after it."""
    texts = [answer.command for answer in ANSWERS]
    texts += [quoted for answer in ANSWERS for quoted in re.findall(r"`(.+?)`", f"{answer.look_for} {answer.why}")]
    return [named for text in texts for named in re.findall(r"perfkit ([a-z][a-z-]*)([^#&]*)", text)]


def test_commands_of_perfkit_and_their_options_exist() -> None:
    values = 0
    for name, rest in commands_of_perfkit():
        command = command_line.get_command(click.Context(command_line), name)
        assert command is not None, name
        options = {option for parameter in command.params for option in parameter.opts}
        # perfkit's own options stand before the script; after it they are the script's.
        own = re.split(r" -- | \S+\.py\b", rest)[0]
        for option, value in re.findall(r" (--[a-z-]+)(?:[ =]([^-\s]\S*))?", own):
            assert option in options, (name, rest)
            if option in NAMED_VALUES:
                assert value.partition("=")[0] in NAMED_VALUES[option], (name, rest)
                values += 1

    assert len(commands_of_perfkit()) >= 50
    assert values >= 10


def test_rules_that_are_explained_exist() -> None:
    explained = [rest.split()[0] for name, rest in commands_of_perfkit() if name == "explain"]

    assert explained
    assert set(explained) <= {rule.id for rule in find_rules()}


def test_findings_that_are_named_exist() -> None:
    ids = {rule.id for rule in find_rules()}
    # Words with a hyphen that are no option.
    texts = " ".join(re.sub(r"`.+?`|\S+/\S+", "", answer.look_for) for answer in ANSWERS)
    named = set(re.findall(r"(?<!-)\b(?:[a-z]+-)+[a-z]+\b", texts))
    assert {"input-bound", "sync-in-step"} <= named & ids
    assert named - {"tensor-core", "warm-up"} <= ids
