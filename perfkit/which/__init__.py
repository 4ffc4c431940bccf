"""Which tool answers a question: a small table, searched offline with the user's own words.

The table is ``answers.json``, in the order in which the questions usually come up. A question is read as concepts
(``_concepts.py``), and each answer names the concepts that it is about: alone, or several that mean it only together.
Questions that were asked before, and whose answer is known, add what their words say (``_asked.py``). A question that
resembles an everyday sentence (``everyday.json``) more than any that was asked gets no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfkit.which._asked import AskedQuestions
from perfkit.which._concepts import concepts_of

__all__ = ["ANSWERS", "EVERYDAY", "Answer", "Match", "as_markdown", "find_answers"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Which tool answers a question: its name, a complete command, what to look for in the result, and why this tool.

    ``subject`` has the concepts that make a question one for this answer, ``signs`` those that make it likely, and
    ``hints`` those that decide between answers that are otherwise equal. ``memory+grows`` counts only where both are
    named. ``asked`` has questions as people have worded them, for which this is the right answer.
    """

    question: str
    tool: str
    command: str
    look_for: str
    why: str
    subject: str
    signs: str
    hints: str
    asked: tuple[str, ...]


ANSWERS = msgspec.json.decode((Path(__file__).parent / "answers.json").read_bytes(), type=tuple[Answer, ...])

#: Sentences about anything else, many with words that this field has too: trains, leaks, models, steps.
EVERYDAY = msgspec.json.decode((Path(__file__).parent / "everyday.json").read_bytes(), type=tuple[str, ...])

#: The subject decides: signs and hints choose where none is named, and between answers whose subject is.
_SUBJECT, _SIGN, _HINT = 6.0, 3.0, 1.0
#: Each further concept of a combination: "rank" and "hang" together say more than either.
_TOGETHER = 1.0
#: What each further match counts of the one before: matches confirm each other, and none of many weak ones decides.
_FURTHER = 0.5
#: An answer with less has one hint at most: a word that fits many answers.
_LEAST = 1.5
#: What evidence of 1, a part that is e times likelier, adds. More helps where no concept is named, and hurts elsewhere:
#: from 0.45 to 0.7 the share of the asked questions that are right when left out in tenths is the same within 1%.
_EVIDENCE = 0.45
#: Answers with at least this share of the best score are shown too.
_CLOSE = 0.35
_MAX_SHOWN = 3


class Match(NamedTuple):
    """An answer and how well it fits, in (0, 1] of the best one."""

    answer: Answer
    fit: float


def find_answers(
    question: str, answers: tuple[Answer, ...] = ANSWERS, everyday: tuple[str, ...] = EVERYDAY
) -> list[Match]:
    """The answers that fit a question, best first: one, or up to three that are close; none if none is about it.

    ``everyday`` has sentences of which none is about this field.
    """
    named = concepts_of(question)
    by_concepts = [_score(answer, named) for answer in answers]
    asked = _questions_of(answers, everyday)
    if max(by_concepts) < _LEAST or asked.is_everyday(question):
        return []
    by_words = asked.evidence(question)
    scores = [score + _EVIDENCE * evidence for score, evidence in zip(by_concepts, by_words, strict=True)]
    best = max(scores)
    matches = [Match(answer, score / best) for answer, score in zip(answers, scores, strict=True)]
    matches.sort(key=lambda match: -match.fit)
    return [match for match in matches[:_MAX_SHOWN] if match.fit >= _CLOSE]


def as_markdown() -> str:
    """The table as a page."""
    head = (
        "# Which tool for which question\n\n"
        '`perfkit which "my GPU is idle half of the time"` searches this page with your own words, offline.\n'
    )
    parts = [
        f"\n## {answer.question}\n\n**{answer.tool}**\n\n```\n{answer.command}\n```\n\n"
        f"Look for: {answer.look_for}\n\nWhy this one: {answer.why}\n"
        for answer in ANSWERS
    ]
    return head + "".join(parts)


def _score(answer: Answer, named: frozenset[str]) -> float:
    matched = sorted((weight for weight, concepts in _weights(answer) if concepts <= named), reverse=True)
    return sum(weight * _FURTHER**number for number, weight in enumerate(matched))


def _weights(answer: Answer) -> Iterator[tuple[float, frozenset[str]]]:
    """What each concept, or combination of concepts, adds to the score of an answer."""
    for weight, listed in ((_SUBJECT, answer.subject), (_SIGN, answer.signs), (_HINT, answer.hints)):
        for combination in listed.split():
            concepts = frozenset(combination.split("+"))
            yield weight + _TOGETHER * (len(concepts) - 1), concepts


@lru_cache(maxsize=2)
def _questions_of(answers: tuple[Answer, ...], everyday: tuple[str, ...]) -> AskedQuestions:
    return AskedQuestions([(answer.question, *answer.asked) for answer in answers], everyday)
