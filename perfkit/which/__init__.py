"""Which tool answers a question: a small table, searched offline, by the words people use.

Words are matched by their stems. A word weighs the more, the fewer answers have it (inverse document frequency), and
counts a little less in an answer that has many words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from perfkit.which.table import ANSWERS, Answer

__all__ = ["ANSWERS", "Answer", "Match", "as_markdown", "find_answers"]

#: Words that say nothing about the question; the last line's are what every question here is about.
_EMPTY_WORDS = """a about after all also am an and any anyone are as at be because been but by can cannot could did do
    does doing done don for from get gets getting go going got had has have having help hello hi how
    i if in into is it its just know let like look make makes many may me might more most much my
    need no not now of off on one only or our out over please really same see seem seems should
    since so some somebody someone something take takes than that the their them then there these
    they thing this those through to too try trying up use used using very want was way we well were
    what when where which while who why will with would you your
    happen happens issue problem question show tell work code program script profile profiles profiled profiler
    profilers profiling pytorch torch perfkit train trains trained training trainings"""
_EMPTY = frozenset(_EMPTY_WORDS.split())
#: Different words for the same thing -> the one that stands for them. Only those that a stem does not bring together.
_SAME = {
    "cuda": "gpu",
    "device": "gpu",
    "gpus": "gpu",
    "accelerator": "gpu",
    "card": "gpu",
    "sluggish": "slow",
    "slower": "slow",
    "slowly": "slow",
    "slowness": "slow",
    "slowdown": "slow",
    "speed": "fast",
    "faster": "fast",
    "speedup": "fast",
    "vram": "memory",
    "ram": "memory",
    "mem": "memory",
    "oom": "outofmemory",
    "dataloading": "dataloader",
    "loader": "dataloader",
    "loading": "dataloader",
    "load": "dataloader",
    "iteration": "step",
    "iterations": "step",
    "usage": "utilization",
    "util": "utilization",
    "utilisation": "utilization",
    "underutilized": "utilization",
    "stuck": "hang",
    "freeze": "hang",
    "frozen": "hang",
    "freezes": "hang",
    "deadlock": "hang",
    "hf": "huggingface",
    "visualise": "visualize",
    "visualization": "visualize",
    "analyse": "analyze",
    "annotation": "annotate",
    "benchmarking": "benchmark",
    "recompilation": "recompile",
    "occasionally": "occasional",
    "sometimes": "occasional",
    "blocked": "block",
    "huge": "big",
    "large": "big",
    "larger": "big",
    "monitoring": "monitor",
    "prevent": "forbid",
    "stddev": "variance",
}
#: Turns of phrase that are one thing.
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
_ENDINGS = ("ational", "ization", "izing", "ations", "ation", "ings", "ing", "edly", "ies", "ed", "es", "ly", "er", "s")

#: An answer this near to the best one is told too.
_CLOSE = 0.6
_SHOWN = 3
#: How much a long answer counts less: BM25's b is 0.75 for texts of any length; these differ by a factor of two.
_LENGTH = 0.4
#: Words of the question itself count more than those beside it: they are what the answer is about.
_ASKED = 1.5


class Match(NamedTuple):
    """An answer and how well it fits, in (0, 1] of the best one."""

    answer: Answer
    fit: float


def find_answers(question: str) -> list[Match]:
    """The answers that fit a question, best first: one, or up to three that are close; none where no word is known."""
    weights, answers = _index()
    asked = set(_stems(question))
    scores: list[tuple[float, Answer]] = []
    for answer, words, length in answers:
        if found := asked & words.keys():
            scores.append((sum(weights[word] * words[word] for word in found) / length, answer))
    if not scores:
        return []
    scores.sort(key=lambda scored: -scored[0])
    best = scores[0][0]
    return [Match(answer, score / best) for score, answer in scores[:_SHOWN] if score >= _CLOSE * best]


def as_markdown() -> str:
    """The table as a page."""
    head = (
        "# Which tool for which question\n\n"
        '`perfkit which "my GPU is idle half of the time"` searches this page in your own words, offline.\n'
    )
    parts = [
        f"\n## {answer.question}\n\n**{answer.tool}**\n\n```\n{answer.command}\n```\n\n"
        f"Look for: {answer.look_for}\n\nWhy this one: {answer.why}\n"
        for answer in ANSWERS
    ]
    return head + "".join(parts)


@lru_cache(maxsize=1)
def _index() -> tuple[dict[str, float], list[tuple[Answer, dict[str, float], float]]]:
    """Weight of each word; each answer with its words (and how much they count there), and its length factor."""
    texts = []
    for answer in ANSWERS:
        words = dict.fromkeys(_stems(f"{answer.also} {answer.tool}"), 1.0)
        words.update(dict.fromkeys(_stems(answer.question), _ASKED))
        texts.append((answer, words))
    having: dict[str, int] = {}
    for _, words in texts:
        for word in words:
            having[word] = having.get(word, 0) + 1
    weights = {word: math.log(len(texts) / count) for word, count in having.items()}
    mean = sum(len(words) for _, words in texts) / len(texts)
    return weights, [(answer, words, 1 + _LENGTH * (len(words) / mean - 1)) for answer, words in texts]


def _stems(text: str) -> Iterable[str]:
    text = text.lower()
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
    for word in re.findall(r"[a-z0-9][a-z0-9_.%]*[a-z0-9%]|[a-z0-9]", text):
        if word not in _EMPTY:
            yield _stem(_SAME.get(word, word))


def _stem(word: str) -> str:
    """A word without its ending, so that "loading", "loads" and "loaded" are one."""
    word = _SAME.get(word, word)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and word.isalpha():
            word = word[: -len(ending)]
            break
    # run(n)ing, stop(p)ed; cache and caching.
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeilos":
        word = word[:-1]
    return word.rstrip("e") if len(word) > 3 else word
