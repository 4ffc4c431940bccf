"""A question as concepts: what its words and phrases mean, whichever of many spellings was typed.

``vocabulary.json`` has each concept with its phrases. Words are compared by their stems, so one form of each is enough.
A phrase of several words is also found where it is written as one word, with hyphens, dots or underscores. The longest
phrase wins: in "gradient checkpointing" nothing is said about saving. A word that no phrase has means nothing, unless
it is a typing error of one that some phrase has. A concept whose name ends in ``_weak`` has words that other subjects
share.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import msgspec

__all__ = ["CONCEPTS", "concepts_of", "words_of"]

#: Each concept and its phrases, separated by semicolons.
CONCEPTS = msgspec.json.decode((Path(__file__).parent / "vocabulary.json").read_bytes(), type=dict[str, str])

#: DataLoader, GRPOTrainer; but not GPUs.
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
#: The first that matches is removed, if three letters remain.
_ENDINGS = re.compile(r"(?<=[a-z]{3})(?:ings|ing|edly|ies|ied|ed|(?<=s|x|z)es|(?<=ch|sh)es|ly|(?<![su])s|y)$")
#: Shorter words have too many neighbours that are other words.
_SHORTEST_MISTYPED = 6
#: One letter too many, missing, wrong or exchanged in a word of six or more (difflib's ratio, 1.0 for equal words).
_ALIKE = 0.83


def concepts_of(question: str) -> frozenset[str]:
    """The concepts that a question names."""
    phrases, longest = _phrases()
    words = words_of(question)
    found: set[str] = set()
    start = 0
    while start < len(words):
        for length in range(min(longest, len(words) - start), 0, -1):
            if concepts := phrases.get("".join(words[start : start + length])):
                found |= concepts
                start += length
                break
        else:
            start += 1
    return frozenset(found)


@lru_cache(maxsize=4096)
def words_of(question: str) -> tuple[str, ...]:
    """The stems of a question's words, without typing errors in words that are known."""
    return tuple(_as_known(word) for word in _words(question))


@lru_cache(maxsize=1)
def _phrases() -> tuple[dict[str, set[str]], int]:
    """The concepts of each phrase, whose stems are written as one word; and how many words the longest has."""
    phrases = defaultdict(set)
    longest = 1
    for concept, listed in CONCEPTS.items():
        for phrase in listed.split(";"):
            words = list(_words(phrase))
            phrases["".join(words)].add(concept)
            longest = max(longest, len(words))
    return dict(phrases), longest


@lru_cache(maxsize=1)
def _known_words() -> dict[str, list[str]]:
    """The words of all phrases by their first letter, which is rarely mistyped."""
    words = defaultdict(list)
    for word in {word for listed in CONCEPTS.values() for word in _words(listed)}:
        words[word[0]].append(word)
    return words


@lru_cache(maxsize=4096)
def _as_known(word: str) -> str:
    """The word, or the known one of which it is a typing error."""
    phrases, _ = _phrases()
    alike = _known_words().get(word[0], [])
    if word in phrases or word in alike or len(word) < _SHORTEST_MISTYPED:
        return word
    return next(iter(difflib.get_close_matches(word, alike, n=1, cutoff=_ALIKE)), word)


def _words(text: str) -> list[str]:
    """The stems of a text; numbers are all the same, since none means anything by itself but 100%."""
    text = _CAMEL_CASE.sub(" ", text).lower()
    text = re.sub(r"\b100 ?%", " fullpercent ", text)
    text = re.sub(r"\d ?%", " percent ", text).replace("c++", "cpp")
    text = re.sub(r"\.(\w+)\(\)", r" \1 call ", text)
    text = re.sub(r"(?<![a-z\d.])\d+(?:[.,]\d+)*(?=[a-z]{0,3}\b)", "#", text)
    return [_stem(word) for word in re.findall(r"#[a-z]*|[a-z][a-z0-9]*", text)]


@lru_cache(maxsize=8192)
def _stem(word: str) -> str:
    """A word without its ending, so that "loading", "loads" and "loaded" are the same word."""
    if word.isalpha():
        word = _ENDINGS.sub("", word)
    # run(n)ing, stop(p)ed; cache and caching.
    if len(word) > 3 and word[-1].isalpha() and word[-1] == word[-2] and word[-1] not in "aeilos":
        word = word[:-1]
    return word.rstrip("e") if len(word) > 3 else word
