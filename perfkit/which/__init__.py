"""Which tool answers a question: a small table, searched offline with the user's own words.

The table is ``answers.json``, in the order in which the questions usually come up. Words are compared by their stems
and by the synonyms in ``vocabulary.json``. A word counts the more, the fewer answers have it (inverse document
frequency), and slightly less in an answer with many words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

__all__ = ["ANSWERS", "Answer", "Match", "as_markdown", "find_answers"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Which tool answers a question: its name, a complete command, what to look for in the result, and why this tool.

    ``keywords`` are further words with which people ask the question, and names of things that they ask about.
    """

    question: str
    tool: str
    command: str
    look_for: str
    why: str
    keywords: str


class _Vocabulary(msgspec.Struct, frozen=True):
    """How words are compared.

    ``stop_words`` carry no meaning in a question, or are the subject of every question here. ``synonyms`` are words
    with the same meaning, under the one that stands for them; only those that do not share a stem. ``phrases`` are
    regular expressions of phrases with one meaning, and the words for it.
    """

    stop_words: str
    synonyms: dict[str, str]
    phrases: dict[str, str]


_FOLDER = Path(__file__).parent
ANSWERS = msgspec.json.decode((_FOLDER / "answers.json").read_bytes(), type=tuple[Answer, ...])

_VOCABULARY = msgspec.json.decode((_FOLDER / "vocabulary.json").read_bytes(), type=_Vocabulary)
_STOP_WORDS = frozenset(_VOCABULARY.stop_words.split())
_SYNONYM_OF = {word: common for common, words in _VOCABULARY.synonyms.items() for word in words.split()}

#: The first that matches is removed, if three letters remain.
_ENDINGS = re.compile(r"(?<=[a-z]{3})(?:ational|ization|izing|ations|ation|ings|ing|edly|ies|ed|es|ly|er|s)$")

#: Answers with at least this share of the best score are shown too.
_CLOSE = 0.6
_MAX_SHOWN = 3
#: How much less a long answer counts: BM25's b is 0.75 for texts of any length; these differ by a factor of two.
_LENGTH_PENALTY = 0.4
#: Words of the question count more than keywords, because they are the subject of the answer.
_QUESTION_WEIGHT = 1.5


class Match(NamedTuple):
    """An answer and how well it fits, in (0, 1] of the best one."""

    answer: Answer
    fit: float


def find_answers(question: str) -> list[Match]:
    """The answers that fit a question, best first: one, or up to three that are close; none if no word is known."""
    words = set(_stems(question))
    scored = [Match(answer, sum(weights.get(word, 0.0) for word in words)) for answer, weights in _index()]
    scored.sort(key=lambda match: -match.fit)
    best = scored[0].fit
    return [Match(answer, score / best) for answer, score in scored[:_MAX_SHOWN] if score and score >= _CLOSE * best]


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


@lru_cache(maxsize=1)
def _index() -> list[tuple[Answer, dict[str, float]]]:
    """Each answer with its words and how much each of them counts."""
    texts = [
        dict.fromkeys(_stems(f"{answer.keywords} {answer.tool}"), 1.0)
        | dict.fromkeys(_stems(answer.question), _QUESTION_WEIGHT)
        for answer in ANSWERS
    ]
    frequency = Counter(word for words in texts for word in words)
    mean = sum(map(len, texts)) / len(texts)
    index = []
    for answer, words in zip(ANSWERS, texts, strict=True):
        length = 1 + _LENGTH_PENALTY * (len(words) / mean - 1)
        index.append(
            (answer, {word: weight * math.log(len(texts) / frequency[word]) / length for word, weight in words.items()})
        )
    return index


def _stems(text: str) -> Iterator[str]:
    text = text.lower()
    for pattern, words in _VOCABULARY.phrases.items():
        text = re.sub(pattern, f" {words} ", text)
    for word in re.findall(r"[a-z0-9][a-z0-9_.%]*[a-z0-9%]|[a-z0-9]", text):
        if word not in _STOP_WORDS:
            yield _stem(_SYNONYM_OF.get(word, word))


def _stem(word: str) -> str:
    """A word without its ending, so that "loading", "loads" and "loaded" are the same word."""
    if word.isalpha():
        word = _ENDINGS.sub("", word)
    # run(n)ing, stop(p)ed; cache and caching.
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeilos":
        word = word[:-1]
    return word.rstrip("e") if len(word) > 3 else word
