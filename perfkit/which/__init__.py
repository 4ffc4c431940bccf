"""Which tool answers a question: a small table, searched offline with the user's own words.

The table is ``answers.json``, in the order in which the questions usually come up. Words are compared by their stems.
A word counts the more, the fewer answers have it (inverse document frequency), and slightly less in an answer with many
words.
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


ANSWERS = msgspec.json.decode(Path(__file__).with_name("answers.json").read_bytes(), type=tuple[Answer, ...])

#: Words that carry no meaning in a question; those of the last two lines are the subject of every question here.
_STOP_TEXT = """a about after all also am an and any anyone are as at be because been but by can cannot could did do
    does doing done don for from get gets getting go going got had has have having help hello hi how
    i if in into is it its just know let like look make makes many may me might more most much my
    need no not now of off on one only or our out over please really same see seem seems should
    since so some somebody someone something take takes than that the their them then there these
    they thing this those through to too try trying up use used using very want was way we well were
    what when where which while who why will with would you your
    happen happens issue problem question show tell work code program script profile profiles profiled profiler
    profilers profiling pytorch torch perfkit train trains trained training trainings"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())
#: Words with the same meaning, under the one that stands for them; only those that do not share a stem.
_SYNONYMS = {
    "gpu": "cuda device gpus accelerator card",
    "slow": "sluggish slower slowly slowness slowdown",
    "fast": "speed faster speedup",
    "memory": "vram ram mem",
    "outofmemory": "oom",
    "dataloader": "dataloading loader loading load",
    "step": "iteration iterations",
    "utilization": "usage util utilisation underutilized",
    "hang": "stuck freeze frozen freezes deadlock",
    "huggingface": "hf",
    "visualize": "visualise visualization",
    "analyze": "analyse",
    "annotate": "annotation",
    "benchmark": "benchmarking",
    "recompile": "recompilation",
    "occasional": "occasionally sometimes",
    "block": "blocked",
    "big": "huge large larger",
    "monitor": "monitoring",
    "forbid": "prevent",
    "variance": "stddev",
}
_SYNONYM_OF = {word: common for common, words in _SYNONYMS.items() for word in words.split()}
#: Phrases with one meaning.
_PHRASES = (
    (re.compile(r"\bout[ -]of[ -]memory\b"), " outofmemory memory "),
    (re.compile(r"\bdata[ -]?load(ing|er|ers)?\b"), " dataloader "),
    (re.compile(r"\ball[ -_]?reduce\b"), " allreduce "),
    (re.compile(r"\bhugging ?face\b"), " huggingface "),
    (re.compile(r"\bmulti[ -]?gpus?\b"), " multigpu gpu "),
    (re.compile(r"\bmulti[ -]?nodes?\b"), " multinode node "),
    (re.compile(r"\btorch\.compile\b"), " torchcompile compile "),
    (re.compile(r"\bgraph[ -]breaks?\b"), " graphbreak "),
    (re.compile(r"\bnsight systems\b"), " nsys nsight "),
    (re.compile(r"\bnsight compute\b"), " ncu nsight "),
)
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
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
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
