"""What questions that were asked before say about a new one: naive Bayes over their words and concepts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from perfkit.which._concepts import concepts_of, words_of

__all__ = ["AskedQuestions"]

#: An answer's questions are counted as if this many average ones stood with them: most answers have ten to forty, and
#: one word in one of ten questions proves little.
_AVERAGE_ONES = 8.0
#: What a part that was never seen counts among questions, and among everyday sentences. There are ten times as many
#: questions, so a new word speaks for everyday. With 0.05, of sentences and questions left out in tenths, 44 of the 60
#: everyday ones that name a concept get no answer, and 8 of the 1782 questions lose theirs; with 0.1 it is 48, and 18.
_UNSEEN = 0.05


class AskedQuestions:
    """The questions of each answer, counted by word and concept; and everyday sentences, for which there is none."""

    def __init__(self, asked: Sequence[Sequence[str]], everyday: Sequence[str]) -> None:
        self._counts = [_count(questions) for questions in asked]
        self._sizes = [len(questions) for questions in asked]
        self._everyday = _count(everyday)
        self._everyday_size = len(everyday)
        self._total: Counter[str] = Counter()
        for counts in self._counts:
            self._total.update(counts)

    def evidence(self, question: str) -> list[float]:
        """For each answer the logarithm of how much likelier the question's parts are there than in all questions."""
        everywhere = {part: self._total[part] / sum(self._sizes) for part in _parts(question) if self._total[part]}
        return [
            sum(
                math.log((counts[part] / share + _AVERAGE_ONES) / (size + _AVERAGE_ONES))
                for part, share in everywhere.items()
            )
            for counts, size in zip(self._counts, self._sizes, strict=True)
        ]

    def is_everyday(self, question: str) -> bool:
        """Whether the question's parts are likelier in an everyday sentence than in a question that has an answer."""
        asked_size = sum(self._sizes)
        return (
            sum(
                math.log((self._everyday[part] + _UNSEEN) / (self._everyday_size + 2 * _UNSEEN))
                - math.log((self._total[part] + _UNSEEN) / (asked_size + 2 * _UNSEEN))
                for part in _parts(question)
            )
            > 0
        )


def _count(questions: Sequence[str]) -> Counter[str]:
    return Counter(part for question in questions for part in _parts(question))


@lru_cache(maxsize=4096)
def _parts(question: str) -> frozenset[str]:
    return frozenset(words_of(question)) | {f"concept {concept}" for concept in concepts_of(question)}
