"""Text that is safe to show, because names come from files that anyone may have written."""

from __future__ import annotations

import re
from typing import Any

#: Characters that a page would hide or obey: controls, lone surrogates, and those that change the text direction.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
#: The longest names seen in traces are kernels' templates of 2,000 characters, which differ in their first hundreds.
LONGEST = 400


def clean(text: str, longest: int = LONGEST) -> str:
    """The text with unsafe characters escaped (``\\u202e``), and cut."""
    shown = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def cleaned(tree: Any) -> Any:
    """Plain data (dicts, lists, texts, numbers) with every text in it clean."""
    if isinstance(tree, str):
        return clean(tree, 2_000)
    if isinstance(tree, dict):
        return {clean(key): cleaned(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        # Nearly all of the data are columns of integers, which need no cleaning.
        return tree if tree and all(type(value) is int for value in tree) else [cleaned(value) for value in tree]
    return tree
