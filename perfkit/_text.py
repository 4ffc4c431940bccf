"""Text from files, libraries and names, made safe to show: every terminal, page and notebook gets it through here.

Anyone may have written it. Control characters are commands to a terminal, marks of direction show a text in another
order than it has, and a name of 10 MB fills any page.
"""

from __future__ import annotations

import re
from typing import Any

#: What is shown as something else or not at all: controls, lone surrogates (no encoding has them), marks of direction,
#: and characters without a width.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
#: Those that JSON contains as they are.
_UNSAFE_IN_JSON = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", ""))
#: The longest names seen in traces are kernels' templates of 2,000 characters, which differ in their first hundreds.
LONGEST = 400
#: Lines and tabs are what a console lays out.
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_LONG_WORD = re.compile(rf"\S{{{LONGEST + 1},}}")
#: A sentence: the longest of perfkit's own have 600 characters without the names in them.
LONGEST_SENTENCE = 4_000


def printable(text: str, instead: str = "?") -> str:
    """``text`` for a terminal: with ``instead`` for each unsafe character, and words and the whole cut."""
    if len(text) > LONGEST:
        text = _cut(_LONG_WORD.sub(lambda found: _cut(found[0], LONGEST), text), LONGEST_SENTENCE)
    return _UNSAFE.sub(instead, text)


def printable_lines(text: str) -> str:
    """Whole lines for a terminal: with ``?`` for each unsafe character other than line feeds and tabs, and no cut."""
    return _UNSAFE_IN_LINES.sub("?", text)


def escaped(text: str) -> str:
    """``text`` of any length with unsafe characters escaped (``\\u202e``): for tables that cut no name."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def clean(text: str, longest: int = LONGEST) -> str:
    """``text`` for a page: unsafe characters are escaped (``\\u202e``), and it is cut."""
    return _cut(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text[: longest + 1]), longest)


def cleaned(tree: Any) -> Any:
    """Plain data (dicts, lists, texts, numbers) for a page, with every text in it clean."""
    if isinstance(tree, str):
        return clean(tree, LONGEST_SENTENCE)
    if isinstance(tree, dict):
        return {clean(key): cleaned(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        # Nearly all of the data are columns of integers, which need no cleaning.
        return tree if tree and all(type(value) is int for value in tree) else [cleaned(value) for value in tree]
    return tree


def escaped_json(text: str) -> str:
    """JSON with the same values and without unsafe characters: they stand in it as escapes."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
